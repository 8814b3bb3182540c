"""A process whose event loop, or whose interpreter, is held up for longer than the lease."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from tests.faults.scenario import calls_with, outcome, rounds, texts

BLOCKING = (sys.executable, str(Path(__file__).with_name("blocking_replica.py")))
LEASE = ("--lease-ttl", "1s")


@rounds(short=1, long=20)
async def test_a_blocked_loop_keeps_its_leases(start, story, rounds):
    """G5, B26: renewed outside the loop: the turn commits, and the one behind it runs after it, never beside."""
    fleet = await start(2, *LEASE, command=BLOCKING)
    for number in range(rounds):
        name, seconds = f"s{number}", story.random.uniform(2.0, 2.6)
        options = {"model": f"sleep:{seconds}", "stream": story.flip(), "session_id": name, "key": name}
        blocking = asyncio.create_task(fleet.chat(f"{name} blocking", at=0, **options))
        await fleet.upstream.until(lambda up, n=name: calls_with(fleet, f"{n} blocking") == 1)
        began = time.monotonic()
        behind = asyncio.create_task(fleet.chat(f"{name} behind", at=1, session_id=name))
        assert [await outcome(asked) for asked in (blocking, behind)] == ["ok", "ok"]
        took = time.monotonic() - began
        story.tell(f"round {number}: the loop was blocked for {seconds:.2f} s, the turn behind done after {took:.2f} s")
        assert took > seconds
        assert await texts(fleet, name) == [f"{name} blocking"] * 2 + [f"{name} behind"] * 2
        first, second = (call for call in fleet.upstream.calls if call.marker == f"{name} blocking")
        assert (first.ended or 0) <= second.started
        assert fleet.upstream.max_overlap == 1


@rounds(short=1, long=20)
async def test_a_held_interpreter_is_fenced(start, story, rounds):
    """G1, G5, B26: nothing can renew then: another turn takes the place, the held up one says so; never two commits."""
    fleet = await start(2, *LEASE, command=BLOCKING)
    for number in range(rounds):
        name = f"s{number}"
        options = {"model": "regex:2.0", "stream": story.flip(), "session_id": name, "key": name}
        blocking = asyncio.create_task(fleet.chat(f"{name} blocking", at=0, **options))
        await fleet.upstream.until(lambda up, n=name: calls_with(fleet, f"{n} blocking") == 1)
        began = time.monotonic()
        behind = await fleet.chat(f"{name} behind", at=1, session_id=name)
        took = time.monotonic() - began
        ended = await outcome(blocking)
        story.tell(
            f"round {number}: taken over after {took:.2f} s; the held up one: {ended} {time.monotonic() - began:.2f}"
        )
        assert (behind.status, ended) == (200, "lease_lost")
        assert await texts(fleet, name, at=1) == [f"{name} behind"] * 2
        told = await fleet.chat(f"{name} blocking", at=1, **options)
        assert (told.status, told.code) == (409, "unknown_execution")
        assert calls_with(fleet, f"{name} blocking") == 1
