"""Replicas in the test's process, on the shared store and a stub upstream of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from tests.adapter.gateway import Gateway, running
from tests.support.proxy import DropReplyProxy
from tests.support.servers import StoreServer
from tests.support.upstream import StubUpstream


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client with as many connections as a test wants."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@asynccontextmanager
async def starter(
    http: aiohttp.ClientSession, store: str, upstream: StubUpstream
) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """Starts replicas on these; they are stopped at the end, before the store is."""
    defaults = {"store": store, "upstream": upstream.url}
    async with AsyncExitStack() as stack:

        async def start_one(**settings: object) -> Gateway:
            return await stack.enter_async_context(running(http, **(defaults | settings)))

        yield start_one


@pytest.fixture
async def start(
    http: aiohttp.ClientSession, store_server: StoreServer, upstream: StubUpstream
) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """`await start(lease_ms=1_000)`: one more replica, with these settings, until the test ends."""
    async with starter(http, store_server.store_url, upstream) as start_one:
        yield start_one


@pytest.fixture
async def gateway(start: Callable[..., Awaitable[Gateway]]) -> Gateway:
    """A replica with the default settings."""
    return await start()


@pytest.fixture
def own_server() -> Iterator[StoreServer]:
    """A store of the test's own, to be broken."""
    with StoreServer() as server:
        yield server


@pytest.fixture
async def start_own(
    http: aiohttp.ClientSession, own_server: StoreServer, upstream: StubUpstream
) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """As `start`, on the test's own store."""
    async with starter(http, own_server.store_url, upstream) as start_one:
        yield start_one


@pytest.fixture
async def proxy(store_server: StoreServer) -> AsyncIterator[DropReplyProxy]:
    """A line to the shared store that loses replies."""
    async with DropReplyProxy(store_server.port) as running_proxy:
        yield running_proxy


@pytest.fixture
async def start_behind(
    http: aiohttp.ClientSession, proxy: DropReplyProxy, upstream: StubUpstream
) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """As `start`, with the store behind `proxy`."""
    async with starter(http, proxy.url, upstream) as start_one:
        yield start_one
