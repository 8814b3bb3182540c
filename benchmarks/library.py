"""The library in one process: turns a second with 32 callers, and what a turn costs the store."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from uuid import uuid4

from redis.asyncio import Redis

from benchmarks.report import Goal, Row
from benchmarks.rounds import medians
from benchmarks.store import script_stats
from coordinator import Coordinator, Explicit, Result, TurnRequest
from tests.support.servers import StoreServer

CALLERS = 32
TENANT = "bench"
ANSWER = Result(status=200, body=b'{"answer": "' + 300 * b"x" + b'"}')

Once = Callable[[int], Awaitable[None]]
"""Does one caller's work once; it is told the caller's number."""


async def repeated(once: Once, seconds: float, callers: int = CALLERS) -> float:
    """How often a second the callers together did it."""
    started = perf_counter()
    count = 0

    async def caller(number: int) -> None:
        nonlocal count
        while perf_counter() - started < seconds:
            await once(number)
            count += 1

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return count / (perf_counter() - started)


def turns(coordinator: Coordinator, *, keyed: bool = False) -> Once:
    """Begin and finish, each caller in a session of its own."""

    async def once(number: int) -> None:
        request = TurnRequest(
            tenant=TENANT,
            address=Explicit(f"caller-{number}"),
            route="bench",
            idempotency_key=uuid4().hex if keyed else None,
        )
        async with coordinator.turn(request) as turn:
            await turn.finish(ANSWER)

    return once


def by_hand(client: Redis) -> Once:
    """What people write: mark the key, take a lock, release it, keep the answer."""

    async def once(number: int) -> None:
        key = f"answers:{uuid4().hex}"
        await client.set(key, "running", nx=True, ex=600)
        async with client.lock(f"lock:{number}", timeout=30):
            pass
        await client.set(key, ANSWER.body, ex=600)

    return once


async def throughput(seconds: float) -> list[Row]:
    """Turns a second, against the least that two scripts can cost and against a lock made by hand."""
    with StoreServer() as server:
        async with Coordinator.open(server.url) as coordinator, Redis.from_url(server.url) as client:
            sha = await client.script_load("return 1")

            async def two_scripts(_: int) -> None:
                await client.evalsha(sha, 0)
                await client.evalsha(sha, 0)

            found = await medians(
                {
                    "ours": lambda s: repeated(turns(coordinator), s),
                    "keyed": lambda s: repeated(turns(coordinator, keyed=True), s),
                    "two scripts": lambda s: repeated(two_scripts, s),
                    "one by one": lambda s: repeated(two_scripts, s, callers=1),
                    "by hand": lambda s: repeated(by_hand(client), s),
                },
                seconds,
            )
    what = f"begin + finish, {CALLERS} callers"
    plain, hand = "two EVALSHA `return 1`", "SET NX, Lock, SET"
    return [
        Row(what, found["ours"], "turns/s", f"{plain}, {CALLERS} callers", found["two scripts"], Goal(">=", 2)),
        Row(what, found["ours"], "turns/s", f"{plain}, one by one", found["one by one"]),
        Row(what, found["ours"], "turns/s", f"{hand}, {CALLERS} callers", found["by hand"], Goal(">=", 5)),
        Row(f"{what}, keyed", found["keyed"], "turns/s", f"{hand}, {CALLERS} callers", found["by hand"]),
    ]


async def server_time(seconds: float) -> list[Row]:
    """Microseconds of the store's one thread that a turn takes: its two scripts, with the commands inside them."""
    with StoreServer() as server:
        async with Coordinator.open(server.url) as coordinator, Redis.from_url(server.url) as client:

            async def micros(once: Once, seconds: float) -> float:
                before = await script_stats(client)
                await repeated(once, seconds)
                after = await script_stats(client)
                return 2 * (after.micros - before.micros) / (after.calls - before.calls)

            found = await medians(
                {
                    "unkeyed": lambda s: micros(turns(coordinator), s),
                    "keyed": lambda s: micros(turns(coordinator, keyed=True), s),
                },
                seconds,
            )
    goal = Goal("<=", 100, "us")
    return [Row(f"server time a turn, {kind}", value, "us", goal=goal) for kind, value in found.items()]
