"""Coordinators in the test's own process, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from coordinator import Coordinator, Settings
from tests.coordinator.hosting import Host
from tests.coordinator.turns import Stop
from tests.support.servers import StoreServer


@pytest.fixture
async def start(store_server: StoreServer) -> AsyncIterator[Callable[..., Awaitable[Coordinator]]]:
    """`await start(lease_ms=1_000)`: one more replica, with these settings, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start_one(**settings: object) -> Coordinator:
            return await stack.enter_async_context(
                Coordinator.open(store_server.url, Settings(**settings))  # type: ignore[arg-type]
            )

        yield start_one


@pytest.fixture
async def coordinator(start: Callable[..., Awaitable[Coordinator]]) -> Coordinator:
    """A replica with the default settings."""
    return await start()


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Holds a step back, loses its answer, or has it fail: `stop.failing("turn_renew")`."""
    return Stop(monkeypatch)


@pytest.fixture
async def start_host(
    start: Callable[..., Awaitable[Coordinator]], store_server: StoreServer
) -> Callable[..., Awaitable[Host]]:
    """`await start_host(idle_ms=1_000)`: as `start`, with the ways of a host that declares its conversations."""

    async def start_one(**settings: object) -> Host:
        return Host(await start(**{"patience_ms": 10_000, **settings}), store_server)

    return start_one


@pytest.fixture
async def host(start_host: Callable[..., Awaitable[Host]]) -> Host:
    """A replica with the default settings, and the same ways."""
    return await start_host()
