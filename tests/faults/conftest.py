"""Replicas in processes of their own, on a store of the test's own, in front of a stub upstream that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack

import aiohttp
import pytest

from tests.faults.scenario import Story, seed_of_this_run
from tests.processes.fleet import Fleet
from tests.support.replicas import SERVE, Replica
from tests.support.servers import StoreServer
from tests.support.upstream import StubUpstream


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Story:
    """Chance, and the account of what was done."""
    return Story(request.node.name, seed_of_this_run())


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that opens a connection a request: one that a killed replica cut is not used again."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


@pytest.fixture
def store() -> Iterator[StoreServer]:
    """A store of the test's own, to be frozen."""
    with StoreServer() as server:
        yield server


@pytest.fixture
async def start(
    http: aiohttp.ClientSession, store: StoreServer, upstream: StubUpstream
) -> AsyncIterator[Callable[..., Awaitable[Fleet]]]:
    """`await start(2, "--lease-ttl", "1s")`: replicas that are killed at the end, however they are then."""
    with ExitStack() as stack:

        async def start_fleet(
            count: int, *flags: str, url: str = store.url, model: str = upstream.url, command: tuple[str, ...] = SERVE
        ) -> Fleet:
            replicas = [Replica(*flags, store=url, upstream=model, command=command) for _ in range(count)]
            for replica in replicas:
                stack.callback(replica.close)
                replica.spawn()
            await asyncio.gather(*(asyncio.to_thread(replica.wait_ready) for replica in replicas))
            return Fleet(http, replicas, store, upstream)

        yield start_fleet
        upstream.release()
