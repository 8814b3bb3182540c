"""Replicas as people run them: three processes on one real store, requests going around them without stickiness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import aiohttp
import pytest

from tests.processes.fleet import Fleet, forget
from tests.support.replicas import Replica
from tests.support.servers import StoreServer
from tests.support.upstream import StubUpstream


@pytest.fixture(scope="session")
def stub() -> Iterator[StubUpstream]:
    """One stub upstream for all replicas, in a thread of its own."""
    with StubUpstream.threaded() as up:
        yield up


@pytest.fixture(scope="session")
def three_replicas(server: StoreServer, stub: StubUpstream) -> Iterator[list[Replica]]:
    """Three replicas with the default settings, started side by side for the whole run."""
    with ExitStack() as stack:
        replicas = [Replica(store=server.store_url, upstream=stub.url) for _ in range(3)]
        for replica in replicas:
            stack.callback(replica.close)
            replica.spawn()
        for replica in replicas:
            replica.wait_ready()
        yield replicas


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client with as many connections as a test wants."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
def fleet(
    http: aiohttp.ClientSession, three_replicas: list[Replica], store_server: StoreServer, stub: StubUpstream
) -> Iterator[Fleet]:
    """The three replicas on an emptied store, and a stub upstream that has seen nothing yet."""
    forget(stub)
    yield Fleet(http, three_replicas, store_server, stub)
    stub.release()


@pytest.fixture
def start_fleet(http: aiohttp.ClientSession, stub: StubUpstream) -> Iterator[Callable[..., Fleet]]:
    """`start_fleet(2, "--lease-ttl", "1s")`: replicas of the test's own, to be stopped, frozen and killed. Their
    store is their own too: what is set for one replica holds for all on its store."""
    with ExitStack() as stack:

        def start(count: int, *flags: str, **env: str) -> Fleet:
            server = stack.enter_context(StoreServer())
            replicas = [Replica(*flags, store=server.store_url, upstream=stub.url, env=env) for _ in range(count)]
            for replica in replicas:
                stack.callback(replica.close)
                replica.spawn()
            for replica in replicas:
                replica.wait_ready()
            forget(stub)
            return Fleet(http, replicas, server, stub)

        yield start
        stub.release()
