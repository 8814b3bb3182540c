"""From the death of a replica, by `kill -9` in the middle of a turn, to the next turn of its conversation elsewhere."""

import asyncio
import random
import sys
from statistics import median
from time import perf_counter
from uuid import uuid4

from benchmarks.report import Goal, Row
from coordinator import Coordinator, Explicit, Result, Settings, TurnRequest
from tests.support.servers import StoreServer

_LEASE_MS = 2_000
_ROUND_S = 4.0  # what a round takes: an interpreter's start, a while of holding, a lease


async def kill(seconds: float) -> list[Row]:
    """Seconds until a waiter on another replica is granted; the lease is the most that the dead one can hold it up."""
    rounds = range(max(3, int(seconds / _ROUND_S)))
    with StoreServer() as server:
        async with Coordinator.open(server.url, Settings(replica="waiter", lease_ms=_LEASE_MS)) as waiter:
            taken = [await _round(waiter, server.url) for _ in rounds]
    goal = Goal("<=", _LEASE_MS / 1000 + 1, "s")
    return [
        Row(f"kill -9 to the next grant, lease {_LEASE_MS / 1000:g} s, median", median(taken), "s"),
        Row(
            f"kill -9 to the next grant, lease {_LEASE_MS / 1000:g} s, worst of {len(taken)}",
            max(taken),
            "s",
            goal=goal,
        ),
    ]


async def _round(waiter: Coordinator, url: str) -> float:
    session_id = uuid4().hex
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.kill", url, session_id, stdout=asyncio.subprocess.PIPE
    )
    try:
        if holder.stdout is None or await holder.stdout.readline() != b"held\n":
            raise RuntimeError("the replica to be killed did not start its turn")
        waiting = asyncio.create_task(_next(waiter, session_id))
        await asyncio.sleep(random.uniform(0, _LEASE_MS / 1000))
        died = perf_counter()
        holder.kill()
        return await waiting - died
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.wait()


async def _next(waiter: Coordinator, session_id: str) -> float:
    async with waiter.turn(_request(session_id)) as turn:
        granted = perf_counter()
        await turn.finish(Result(status=200, body=b""))
    return granted


def _request(session_id: str) -> TurnRequest:
    return TurnRequest(tenant="bench", address=Explicit(session_id), route="bench")


async def _hold(url: str, session_id: str) -> None:
    """The replica that is killed: it takes the turn, says so, and goes on until then."""
    async with (
        Coordinator.open(url, Settings(replica="holder", lease_ms=_LEASE_MS)) as coordinator,
        coordinator.turn(_request(session_id)),
    ):
        print("held", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1], sys.argv[2]))
