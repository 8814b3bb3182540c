"""Bytes that sessions, records and retired ids take in a store: the growth of its memory over many of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from redis.asyncio import Redis

from benchmarks.report import Goal, Row
from benchmarks.store import used_memory
from coordinator import Address, Coordinator, Explicit, Implicit, Result, TurnRequest
from coordinator.identity import target_of
from coordinator.keys import TenantKeys
from tests.support.servers import StoreServer

_MANY = 10_000
_CALLERS = 64
_TENANT = "bench"
_KEYS = TenantKeys(_TENANT)


async def memory(seconds: float) -> list[Row]:  # noqa: ARG001 - as long as it takes to write them
    """Bytes a session, a turn's record, a key's record, and a retired id take."""
    return [*await _sessions(), *await _records(), *await _retired()]


async def _sessions() -> list[Row]:
    async with _empty_store(unkeyed_ttl_ms=1) as (coordinator, client):
        before = await used_memory(client)
        await _each(_turn(coordinator, Implicit((b"hello", b"%d" % number))) for number in range(_MANY))
        after = await _settled_memory(client)
    return [Row("an idle session", (after - before) / _MANY, "B", goal=Goal("<=", 500, "B"))]
