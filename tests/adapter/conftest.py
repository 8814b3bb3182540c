"""Replicas in the test's process, on the shared store and a stub upstream of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest

from tests.adapter.gateway import Gateway, running
from tests.support.servers import StoreServer
from tests.support.upstream import StubUpstream


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client with as many connections as a test wants."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
async def start(
    http: aiohttp.ClientSession, store_server: StoreServer, upstream: StubUpstream
) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """`await start(lease_ms=1_000)`: one more replica, with these settings, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start_one(**settings: object) -> Gateway:
            defaults = {"store": store_server.store_url, "upstream": upstream.url}
            return await stack.enter_async_context(running(http, **(defaults | settings)))

        yield start_one


@pytest.fixture
async def gateway(start: Callable[..., Awaitable[Gateway]]) -> Gateway:
    """A replica with the default settings."""
    return await start()
