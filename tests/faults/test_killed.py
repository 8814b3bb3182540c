"""Replicas that die: kill -9 at random moments of a turn, at the head of a queue, beside somebody else's turn."""

from __future__ import annotations

import asyncio
import time

from tests.faults.scenario import calls_with, counted, last_user_text, outcome, rounds, texts, until_queued

LEASE_S = 1.0
LEASE = ("--lease-ttl", "1s")


@rounds(short=2, long=100, limit_s=900)
async def test_killed_at_random_moments_of_a_turn(start, story, rounds):
    """G6, F5, B15: of every turn there is one record or an interruption, never two; nothing is wedged, the next turn
    is granted within a lease and a second."""
    fleet = await start(2, *LEASE)
    told = []
    for number in range(rounds):
        names = [f"r{number}-{n}" for n in range(6)]
        asking = {}
        for name in names:
            options = {"stream": story.flip(), "model": f"slow:{story.random.uniform(0, 0.06):.3f}", "key": name}
            asking[name] = options, asyncio.create_task(fleet.chat(f"{name} a b c", at=0, session_id=name, **options))
            await asyncio.sleep(story.random.uniform(0, 0.04))
        fleet.replicas[0].kill()
        killed = time.monotonic()
        ends = await asyncio.gather(*(check(fleet, name, killed, *asking[name]) for name in names))
        told += ends
        story.tell(f"round {number}: {counted(ends)}; granted after {time.monotonic() - killed:.2f} s")
        await asyncio.to_thread(fleet.replicas[0].start)
    story.tell(f"{rounds} kills: {counted(told)}")
    assert set(told) <= {"completed", "interrupted", "never began"}


async def check(fleet, name, killed, options, asking):
    """What became of a turn, as it is told and as it is recorded, once the next one has run."""
    text = f"{name} a b c"
    first = await outcome(asking)
    following = await fleet.chat(f"{name} next", at=1, session_id=name)
    assert following.status == 200, following.body
    (granted,) = [call.started for call in fleet.upstream.calls if last_user_text(call.json()) == f"{name} next"]
    assert granted - killed < LEASE_S + 1
    retried = await fleet.chat(text, at=1, session_id=name, **options)
    kept = await texts(fleet, name, at=1)
    recorded = kept.count(text) // 2
    assert calls_with(fleet, text) <= 1
    if retried.status == 200 and retried.replayed:
        assert recorded == 1
        return "completed"
    if retried.status == 200:
        assert (recorded, first != "ok") == (1, True)
        return "never began"
    assert (retried.status, retried.code, recorded) == (409, "unknown_execution", 0)
    assert first != "ok"
    return "interrupted"


@rounds(short=1, long=10)
async def test_the_head_of_the_queue_is_killed(start, story, rounds):
    """G3: those behind it start within seconds of the release, in their order, and nothing ran for the dead."""
    fleet = await start(2, *LEASE)
    for number in range(rounds):
        name = f"s{number}"
        running = await fleet.hold(f"{name} running", session_id=name, at=1)
        head = asyncio.create_task(fleet.chat("head", session_id=name, at=0))
        await until_queued(fleet, name, 1, at=1)
        behind = []
        for n in range(3):
            behind.append(asyncio.create_task(fleet.chat(f"behind {n}", session_id=name, at=1)))
            await until_queued(fleet, name, n + 2, at=1)
        fleet.replicas[0].kill()
        fleet.upstream.release()
        released = time.monotonic()
        assert await outcome(head) != "ok"
        assert [await outcome(asking) for asking in (running, *behind)] == ["ok"] * 4
        took = time.monotonic() - released
        story.tell(f"round {number}: the last of three behind a dead head was done after {took:.2f} s")
        assert took < 5
        assert await texts(fleet, name, at=1) == [
            text for text in (f"{name} running", "behind 0", "behind 1", "behind 2") for _ in (0, 1)
        ]
        await asyncio.to_thread(fleet.replicas[0].start)
    assert calls_with(fleet, "head") == 0


@rounds(short=2, long=10)
async def test_replicas_that_come_and_go_leave_others_turns_alone(start, story, rounds):
    """B48: starting, stopping and dying beside a live turn, and looking at it, neither ends it nor takes its lease."""
    fleet = await start(2, *LEASE)
    running = await fleet.hold("hello", session_id="s", key="k", at=0)
    turn = (await fleet.session("s", at=1)).json()["live"][0]
    for number in range(rounds):
        if number % 2:
            await asyncio.to_thread(fleet.replicas[1].restart)
        else:
            fleet.replicas[1].kill()
            await asyncio.to_thread(fleet.replicas[1].start)
        await asyncio.sleep(story.random.uniform(0.2, LEASE_S))
        (live,) = (await fleet.session("s", at=1)).json()["live"]
        assert (live["turn"], live["fence"]) == (turn["turn"], turn["fence"])
        story.tell(f"round {number}: restarted the other replica, {live['expires_in_ms']} ms of the lease left")
    fleet.upstream.release()
    first = await running
    assert first.status == 200
    assert (await fleet.chat("hello", model="gate", session_id="s", key="k", at=1)).body == first.body
    assert fleet.upstream.count == 1
