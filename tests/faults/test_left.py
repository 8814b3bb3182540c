"""Callers that leave at any moment, by the hundred: nothing is held for them, nothing of theirs reaches others."""

from __future__ import annotations

import asyncio
import time

from coordinator import Coordinator, Explicit, Result, Settings, TurnRequest
from tests.faults.scenario import counted, rounds
from tests.support.proxy import DropReplyProxy
from tests.support.waiting import until

RUNNING = "coord1:{default}:running"
QUEUES = "coord1:{*:queue:*"


@rounds(short=40, long=200)
async def test_cancelled_between_sending_and_reply(story, store, rounds):
    """G13, B55: a grant whose caller left before it was told is taken back: none is held for longer than a second."""
    async with (
        DropReplyProxy(store.port) as proxy,
        Coordinator.open(proxy.url, Settings(lease_ms=30_000)) as coordinator,
    ):
        await whole_turn(coordinator, "warm")
        proxy.delay_ms = 25
        ghosts, ends, longest = 0, [], 0.0
        for number in range(0, rounds, 10):
            tasks = [asyncio.create_task(whole_turn(coordinator, f"s{n}")) for n in range(number, number + 10)]
            await asyncio.sleep(story.random.uniform(0, 0.06))
            ghosts += store.cli("ZCARD", RUNNING)
            for task in tasks:
                task.cancel()
            left = time.monotonic()
            ends += [type(error).__name__ for error in await asyncio.gather(*tasks, return_exceptions=True)]
            await until(lambda: store.cli("ZCARD", RUNNING) == 0, timeout_s=1, what="nothing held for who has left")
            longest = max(longest, time.monotonic() - left)
            assert store.cli("KEYS", QUEUES) == []
        story.tell(
            f"{rounds} callers left, {ghosts} while granted; nothing held after {longest:.3f} s; {counted(ends)}"
        )
        assert ghosts > 0
        proxy.delay_ms = 0
        for number in range(rounds):
            await whole_turn(coordinator, f"s{number}")


async def whole_turn(coordinator, name):
    """One turn under a key of its own."""
    request = TurnRequest(tenant="default", address=Explicit(name), route="chat")
    async with coordinator.turn(request) as turn:
        await turn.finish(Result(status=200, body=b"{}"))


@rounds(short=150, long=1_000)
async def test_requests_cancelled_at_random_points(start, story, store, upstream, rounds):
    """B44, B53, B68: no lease without an owner, no connection more than before, and every answer is the asker's own."""
    async with DropReplyProxy(store.port) as proxy:
        fleet = await start(1, "--lease-ttl", "30s", url=proxy.url)
        for n in range(50):
            await fleet.chat(f"warm {n}", session_id=f"s{n}")
        base = connected(store)
        proxy.delay_ms = 10
        ends: list[str] = []

        async def one(number):
            text = f"request {number} of its own"
            options = {"session_id": f"s{story.random.randrange(50)}", "stream": story.flip()}
            options |= {"key": f"k{number}"} if story.flip() else {}
            options["model"] = f"slow:{story.random.choice((0, 0.01))}"
            asking = asyncio.create_task(fleet.chat(text, **options))
            if story.random.random() < 0.8:
                await asyncio.wait([asking], timeout=story.random.uniform(0, 0.3))
                asking.cancel()
            try:
                reply = await asking
            except asyncio.CancelledError:
                ends.append("left")
                return
            ends.append(str(reply.status))
            if reply.status == 200:
                assert reply.text() == text
                assert reply.session_id == options["session_id"]
            else:
                assert reply.code in ("session_queue_full", "session_busy"), reply.body

        for number in range(0, rounds, 50):
            await asyncio.gather(*(one(n) for n in range(number, min(number + 50, rounds))))
        proxy.delay_ms = 0
        await until(lambda: store.cli("ZCARD", RUNNING) == 0, timeout_s=10, what="no lease without an owner")
        await until(lambda: upstream.running == 0, what="no upstream call without an owner")
        await until(lambda: store.cli("KEYS", QUEUES) == [], what="no place in a queue without an owner")
        await until(lambda: connected(store) <= base, what="no connection more than before")
        story.tell(f"{rounds} requests: {counted(ends)}; {connected(store)} connections, {base} before")
        assert ends.count("left") > rounds / 4
        replies = await asyncio.gather(*(fleet.chat(f"after {n}", session_id=f"s{n}") for n in range(50)))
        assert [(reply.status, reply.text()) for reply in replies] == [(200, f"after {n}") for n in range(50)]


def connected(server):
    """How many clients the store has."""
    return len(server.cli("CLIENT", "LIST").splitlines())


@rounds(short=60, long=300)
async def test_slots_come_back(start, story, store, upstream, rounds):
    """G10, B53: under a cap, streams that are dropped at random points and a replica that dies use up no slot."""
    fleet = await start(2, "--lease-ttl", "1s", "--max-running", "3")

    async def drop(number):
        options = {"session_id": f"s{number}", "stream": True, "model": "slow:0.02"}
        asking = asyncio.create_task(fleet.chat("one two three", **options))
        await asyncio.wait([asking], timeout=story.random.uniform(0, 0.15))
        asking.cancel()
        await asyncio.wait([asking])

    for number in range(0, rounds, 10):
        await asyncio.gather(*(drop(n) for n in range(number, number + 10)))
    await until(lambda: store.cli("ZCARD", RUNNING) == 0, timeout_s=5)
    held = [asyncio.create_task(fleet.chat("hello", at=0, session_id=f"h{n}", model="gate")) for n in range(3)]
    await upstream.until(lambda up: up.running == 3)
    limited = await fleet.chat("one too many", at=1, session_id="n", key="n")
    assert (limited.status, limited.code) == (429, "rate_limit_exceeded")
    fleet.replicas[0].kill()
    killed = time.monotonic()
    await asyncio.gather(*held, return_exceptions=True)
    while (reply := await fleet.chat("one too many", at=1, session_id="n", key="n")).status == 429:
        await asyncio.sleep(0.05)
    took = time.monotonic() - killed
    story.tell(f"{rounds} streams dropped; slots of a dead replica were free after {took:.2f} s")
    assert (reply.status, took < 2) == (200, True)
