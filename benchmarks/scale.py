"""Whether beginning a turn takes longer the more conversations a store holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from redis.asyncio import Redis

from benchmarks.report import Goal, Row
from benchmarks.rounds import interleaved
from coordinator import Coordinator, Explicit, Result, TurnRequest
from coordinator.identity import new_nonce, target_of
from coordinator.keys import TenantKeys
from tests.support.servers import StoreServer

FEW, MANY = 1_000, 1_000_000
_TENANT = "bench"
_KEYS = TenantKeys(_TENANT)
_PAGE = 2_000


async def scale(seconds: float) -> list[Row]:
    """The median latency of begin, call by call, among few and among many idle conversations."""
    async with _filled(FEW) as few, _filled(MANY) as many:
        found = await interleaved(
            {"few": lambda s: _begins(few, FEW, s), "many": lambda s: _begins(many, MANY, s)}, seconds
        )
    latency_us = {name: median(median(one) for one in rounds) for name, rounds in found.items()}
    return [
        Row(f"latency of begin, {MANY:,} conversations", latency_us["many"], "us", f"{FEW:,}", latency_us["few"],
            Goal("<=", 1.1))
    ]  # fmt: skip


@asynccontextmanager
async def _filled(count: int) -> AsyncIterator[Coordinator]:
    """A coordinator on a store with that many idle conversations, as turns would have left them."""
    with StoreServer() as server:
        async with Redis.from_url(server.url) as client:
            for start in range(0, count, _PAGE):
                async with client.pipeline(transaction=False) as pipeline:
                    for number in range(start, min(start + _PAGE, count)):
                        session_id = f"chat-{number}"
                        cid = target_of(_TENANT, Explicit(session_id)).cid
                        fields: dict[Any, Any] = {
                            "kind": "x", "history": "store", "source": "api_server", "session": session_id,
                            "generation": 1, "nonce": new_nonce(), "created_ms": 1_700_000_000_000, "turns": 1,
                            "fence": 1_700_000_000_000, "active_ms": 1_700_000_000_000, "holder": "replica-00000000",
                        }  # fmt: skip
                        pipeline.hset(_KEYS.conversation(cid), mapping=fields)
                        pipeline.zadd(_KEYS.sessions, {cid: 1_700_000_000_000 + number})
                    await pipeline.execute()
        async with Coordinator.open(server.url, serving=False) as coordinator:
            yield coordinator


async def _begins(coordinator: Coordinator, count: int, seconds: float) -> list[float]:
    """Microseconds of each begin, one after the other, in conversations chosen by chance."""
    choice, found, started = Random(count), [], perf_counter()
    while perf_counter() - started < seconds:
        address = Explicit(f"chat-{choice.randrange(count)}")
        asked = perf_counter()
        async with coordinator.turn(TurnRequest(tenant=_TENANT, address=address, route="bench")) as turn:
            found.append((perf_counter() - asked) * 1e6)
            await turn.finish(Result(status=200, body=b""))
    return found
