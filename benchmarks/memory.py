"""Bytes that sessions, records and retired ids take in a store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from uuid import uuid4

from redis.asyncio import Redis

from benchmarks.report import Goal, Row
from benchmarks.store import keys_memory, used_memory
from coordinator import Coordinator, Explicit, Implicit, Result, Settings, TurnRequest
from coordinator.identity import target_of
from coordinator.keys import TenantKeys
from tests.support.servers import StoreServer

_TENANT = "bench"
_KEYS = TenantKeys(_TENANT)
_TOGETHER = 64
_MANY, _MOST = 10_000, 100_000
_FEW = 1_000  # enough where every one takes the same
_RECORD_MS = 1  # how long a record is kept that is to be gone when the memory is looked at
_EXPIRED_S = 1.5  # by then the server has swept up what expired: it looks ten times a second


async def memory(seconds: float) -> list[Row]:  # noqa: ARG001 - it takes as long as writing them takes
    """Bytes that a session, a turn's record, a key's record and a retired id take."""
    return [*await _sessions(), *await _records(), *await _retired()]


async def _sessions() -> list[Row]:
    async with _empty_store(Settings(unkeyed_ttl_ms=_RECORD_MS)) as (coordinator, client):
        await _turn(coordinator, Implicit((b"the first",)))
        before = await used_memory(client)
        await _all(_turn(coordinator, Implicit((b"%d" % number,))) for number in range(_MANY))
        await asyncio.sleep(_EXPIRED_S)
        session = (await used_memory(client) - before) / _MANY
    return [Row("memory of an idle session, its turn's record gone", session, "B", goal=Goal("<=", 500, "B"))]


async def _records() -> list[Row]:
    async with _empty_store(Settings()) as (coordinator, client):
        await _all(_turn(coordinator, Implicit((b"%d" % number,)), uuid4().hex) for number in range(_FEW))
        record, _ = await keys_memory(client, _KEYS.turn("*"))
        key, _ = await keys_memory(client, _KEYS.idempotency("*"))
    return [
        Row("memory of a turn's record, its body apart", record / _FEW, "B"),
        Row("memory of an idempotency key's record", key / _FEW, "B"),
    ]


async def _retired() -> list[Row]:
    async with _empty_store(Settings()) as (coordinator, client):

        async def ours(number: int) -> None:
            await coordinator.delete_session(_TENANT, await _turn(coordinator, Implicit((b"%d" % number,))))

        async def chosen(number: int) -> None:
            await coordinator.delete_session(_TENANT, await _turn(coordinator, Explicit(f"chosen-{number}")))

        await _all(ours(number) for number in range(_FEW))
        await coordinator.prune(_TENANT, 0)
        left, _ = await keys_memory(client, _KEYS.conversation("*").partition("conversation:")[0] + "*")
        await _all(chosen(number) for number in range(_MANY))
        await coordinator.prune(_TENANT, 0)
        many, _ = await keys_memory(client, _KEYS.retired("*"))
        # The rest is written as session_delete would write it, which would take minutes.
        async with client.pipeline(transaction=False) as pipeline:
            for number in range(_MANY, _MOST):
                target = target_of(_TENANT, Explicit(f"chosen-{number}"))
                pipeline.sadd(_KEYS.retired(target.retired_bucket), target.retired_id)
            await pipeline.execute()
        most, _ = await keys_memory(client, _KEYS.retired("*"))
    return [
        Row("memory of a retired id of ours", left / _FEW, "B", goal=Goal("=", 0, "B")),
        Row(f"memory of a retired id of a client, of {_MANY:,}", many / _MANY, "B"),
        Row(f"memory of a retired id of a client, of {_MOST:,}", most / _MOST, "B", goal=Goal("<=", 16, "B")),
    ]


@asynccontextmanager
async def _empty_store(settings: Settings) -> AsyncIterator[tuple[Coordinator, Redis]]:
    with StoreServer() as server:
        async with (
            Coordinator.open(server.url, settings, serving=False) as coordinator,
            Redis.from_url(server.url) as client,
        ):
            yield coordinator, client


async def _turn(coordinator: Coordinator, address: Implicit | Explicit, key: str | None = None) -> str:
    """A turn with an empty answer; the session's id."""
    request = TurnRequest(tenant=_TENANT, address=address, route="chat.completions", idempotency_key=key)
    async with coordinator.turn(request) as turn:
        await turn.finish(Result(status=200, body=b""))
        return turn.session_id


async def _all(work: Iterator[Awaitable[object]]) -> None:
    """Does it all, a bounded number at a time."""
    while together := list(islice(work, _TOGETHER)):
        await asyncio.gather(*together)
