"""Every message may be lost: with the subscribers' connections cut again and again, polls and renewals do all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from tests.faults.scenario import Story, outcome, rounds, texts, until_queued
from tests.support.servers import StoreServer

INTERRUPT = {"X-Hermes-Turn-Policy": "interrupt"}
LEASE_S = 1.5
POLL_S = 1.0


@contextlib.asynccontextmanager
async def no_messages(store: StoreServer, story: Story) -> AsyncIterator[None]:
    """Subscribers are cut off as soon as they are back."""
    cut, over = 0, asyncio.Event()

    async def cut_off() -> None:
        nonlocal cut
        while not over.is_set():
            cut += await asyncio.to_thread(store.cli, "CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.sleep(0.005)

    cutting = asyncio.create_task(cut_off())
    try:
        yield
    finally:
        over.set()
        await cutting
        story.tell(f"{cut} subscriptions were cut")


@rounds(short=1, long=15)
async def test_stopping_interrupting_and_handing_on(start, story, store, rounds):
    """G7, G11, B45, B73: all of it still works, at polling speed, and at full speed again afterwards."""
    fleet = await start(2, "--lease-ttl", f"{LEASE_S * 1000:.0f}ms")
    for number in range(rounds):
        async with no_messages(store, story):
            await stopping(fleet, story, f"stop{number}", LEASE_S / 3 + 0.5)
            await interrupting(fleet, story, f"interrupt{number}", LEASE_S / 3 + POLL_S + 0.5)
            await handing_on(fleet, story, f"hand{number}", POLL_S + 0.5)
            await following(fleet, f"follow{number}")
        await asyncio.sleep(0.6)  # they subscribe again
        await handing_on(fleet, story, f"again{number}", POLL_S / 2)


async def stopping(fleet, story, name, limit_s):
    """A turn on one replica is stopped through the other."""
    running = await fleet.hold(f"{name} a", session_id=name, at=0)
    began = time.monotonic()
    assert (await fleet.request("POST", f"/api/sessions/{name}/cancel", at=1)).status == 200
    assert await outcome(running) == "turn_cancelled"
    took = time.monotonic() - began
    story.tell(f"stopped after {took:.2f} s")
    assert took < limit_s


async def interrupting(fleet, story, name, limit_s):
    """A turn on one replica is interrupted by a request to the other."""
    running = await fleet.hold(f"{name} a", session_id=name, at=0)
    began = time.monotonic()
    urgent = await fleet.chat(f"{name} b", session_id=name, at=1, headers=INTERRUPT)
    took = time.monotonic() - began
    assert (urgent.status, await outcome(running)) == (200, "turn_cancelled")
    story.tell(f"interrupted and served after {took:.2f} s")
    assert took < limit_s


async def handing_on(fleet, story, name, limit_s):
    """A turn that ends on one replica is followed by one that waits on the other."""
    running = await fleet.hold(f"{name} a", session_id=name, at=0)
    waiting = asyncio.create_task(fleet.chat(f"{name} b", session_id=name, at=1))
    await until_queued(fleet, name, 1, at=0)
    fleet.upstream.release()
    assert await outcome(running) == "ok"
    began = time.monotonic()
    assert await outcome(waiting) == "ok"
    took = time.monotonic() - began
    story.tell(f"handed on after {took:.3f} s")
    assert took < limit_s
    assert await texts(fleet, name) == [f"{name} a"] * 2 + [f"{name} b"] * 2


async def following(fleet, name):
    """A stream that is told on one replica is followed on the other, with nothing lost."""
    options = {"session_id": name, "key": name, "stream": True, "model": "slow:0.05"}
    first = asyncio.create_task(fleet.chat(f"{name} b c d e f", at=0, **options))
    await asyncio.sleep(0.12)
    joined = await fleet.chat(f"{name} b c d e f", at=1, **options)
    assert joined.body == (await first).body
