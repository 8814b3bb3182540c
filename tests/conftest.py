"""Fixtures every test may use; nothing here imports the product."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.servers import StoreServer
from tests.support.upstream import StubUpstream


@pytest.fixture(scope="session")
def server() -> Iterator[StoreServer]:
    """One real server for the whole run; tests that break it or change its settings start their own."""
    with StoreServer() as running:
        yield running


@pytest.fixture
def store_server(server: StoreServer) -> StoreServer:
    """The shared server, emptied."""
    server.flushall()
    return server


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[StoreServer]:
    """One one-node cluster for the whole run: it takes 2 s to start."""
    with StoreServer(cluster=True) as running:
        yield running


@pytest.fixture
def cluster_server(shared_cluster: StoreServer) -> StoreServer:
    """The shared one-node cluster, emptied."""
    shared_cluster.flushall()
    return shared_cluster


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[StubUpstream]:
    """A stub model server of the test's own."""
    async with StubUpstream() as up:
        yield up
