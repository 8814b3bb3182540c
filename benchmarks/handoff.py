"""From the end of a turn to the start of the next one that waited for it, on another replica."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from statistics import median, quantiles
from time import perf_counter
from uuid import uuid4

from redis.asyncio import Redis

from benchmarks.report import Goal, Row
from coordinator import Coordinator, Explicit, Result, Settings, TurnRequest
from coordinator.identity import target_of
from coordinator.keys import TenantKeys
from tests.support.servers import StoreServer

_TENANT = "bench"
_LONGEST_WAIT_S = 0.1  # how long the holder goes on at most: as long as Lock sleeps, so it meets all of its phases
_LOCK_TAKES_S = 0.12  # what a round of both takes in the mean, set-up included


async def handoff(seconds: float) -> list[Row]:
    """Milliseconds of a hand-off, ours and that of redis-py's Lock, in turns."""
    ours: list[float] = []
    lock: list[float] = []
    with StoreServer() as server:
        async with (
            Coordinator.open(server.url, Settings(replica="holder")) as holder,
            Coordinator.open(server.url, Settings(replica="waiter")) as waiter,
            Redis.from_url(server.url) as client,
            Redis.from_url(server.url) as other,
        ):
            for _ in range(max(20, int(seconds / (2 * _LOCK_TAKES_S)))):
                ours.append(await _turns(holder, waiter, client))
                lock.append(await _locks(client, other))
    p50, p99, lock_p50, lock_p99 = median(ours), _p99(ours), median(lock), _p99(lock)
    return [
        Row("hand-off to another replica, p50", p50, "ms", "redis-py Lock", lock_p50, Goal("<=", 0.1)),
        Row("hand-off to another replica, p50", p50, "ms", goal=Goal("<=", 5, "ms")),
        Row("hand-off to another replica, p99", p99, "ms", "redis-py Lock", lock_p99),
    ]


def _p99(found: list[float]) -> float:
    return quantiles(found, n=100, method="inclusive")[98]


async def _turns(holder: Coordinator, waiter: Coordinator, client: Redis) -> float:
    address = Explicit(uuid4().hex)
    request = TurnRequest(tenant=_TENANT, address=address, route="bench")
    queue = TenantKeys(_TENANT).queue(target_of(_TENANT, address).cid)

    async def wait() -> float:
        async with waiter.turn(request) as turn:
            granted = perf_counter()
            await turn.finish(Result(status=200, body=b""))
        return granted

    async with holder.turn(request) as turn:
        waiting = asyncio.create_task(wait())
        while not await client.zcard(queue):
            await asyncio.sleep(0.001)
        return await _measured(lambda: turn.finish(Result(status=200, body=b"")), waiting)


async def _locks(client: Redis, other: Redis) -> float:
    name = f"lock:{uuid4().hex}"
    held = client.lock(name, timeout=30)
    tried = asyncio.Event()

    async def wait() -> float:
        lock = other.lock(name, timeout=30)
        tried.set()
        await lock.acquire()
        granted = perf_counter()
        await lock.release()
        return granted

    await held.acquire()
    waiting = asyncio.create_task(wait())
    await tried.wait()
    return await _measured(held.release, waiting)


async def _measured(end: Callable[[], Awaitable[None]], waiting: "asyncio.Task[float]") -> float:
    """Ends it after a while of any length; milliseconds from then on until the waiter has it."""
    await asyncio.sleep(random.uniform(0, _LONGEST_WAIT_S))
    ended = perf_counter()
    await end()
    return (await waiting - ended) * 1000
