"""Replicas that sleep through their leases (SIGSTOP), with an upstream that answers meanwhile."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from tests.faults.scenario import calls_with, counted, outcome, rounds, texts
from tests.processes.fleet import Fleet
from tests.support.clients import Reply

LEASE_S = 1.0
LEASE = ("--lease-ttl", "1s")
FORMS = ("json", "stream", "stream under way")


@dataclass
class Holder:
    """One turn that its replica holds while it is stopped."""

    name: str
    form: str
    task: asyncio.Task[Reply]
    options: dict[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What it asks."""
        return f"{self.name} old words"


async def hold(fleet: Fleet, name: str, form: str, *, mode: str | None = None) -> Holder:
    """A turn on replica 0 whose upstream waits, before its first word or after it."""
    model = mode or ("gate_mid" if form == "stream under way" else "gate")
    options: dict[str, object] = {"model": model, "stream": form != "json", "session_id": name, "key": name}
    held = Holder(name, form, asyncio.create_task(asyncio.sleep(0)), options)  # type: ignore[arg-type]
    held.task = asyncio.create_task(fleet.chat(held.text, at=0, **options))
    await fleet.upstream.until(lambda up: calls_with(fleet, held.text) == 1)
    return held


async def slept(fleet: Fleet, seconds: float) -> None:
    """Wait while replica 0 is stopped; the upstream answers it meanwhile."""
    await asyncio.sleep(seconds)
    fleet.upstream.release()
    await asyncio.sleep(0.05)


@rounds(short=1, long=30, limit_s=600)
async def test_taken_over_while_it_slept(start, story, rounds):
    """G1, G2, G5: the old holder's writes are refused, its client gets `lease_lost`; only the other turn is kept."""
    fleet = await start(2, *LEASE)
    for number in range(rounds):
        held = [await hold(fleet, f"r{number}-{form.replace(' ', '-')}", form) for form in FORMS]
        await asyncio.sleep(story.random.uniform(0, LEASE_S / 2))
        fleet.replicas[0].freeze()
        began = time.monotonic()
        news = await asyncio.gather(
            *(fleet.chat(f"{each.name} new", session_id=each.name, stream=story.flip(), at=1) for each in held)
        )
        took = time.monotonic() - began
        assert [reply.status for reply in news] == [200] * len(held)
        assert took < LEASE_S + 1
        await slept(fleet, story.random.uniform(0, 0.3))
        fleet.replicas[0].thaw()
        ends = [await outcome(each.task) for each in held]
        story.tell(f"round {number}: taken over after {took:.2f} s; the old ones: {counted(ends)}")
        assert ends == ["lease_lost"] * len(held)
        for each in held:
            assert await texts(fleet, each.name) == [f"{each.name} new"] * 2
            again = await fleet.chat(each.text, at=1, **each.options)
            assert (again.status, again.code) == (409, "unknown_execution")
            assert calls_with(fleet, each.text) == 1


@rounds(short=1, long=30, limit_s=600)
async def test_a_retry_was_told_while_it_slept(start, story, rounds):
    """F5, G8: once anyone was told `unknown_execution` the old holder can neither complete nor free the key."""
    fleet = await start(2, *LEASE)
    for number in range(rounds):
        held = [await hold(fleet, f"r{number}-{form.replace(' ', '-')}", form) for form in FORMS]
        fleet.replicas[0].freeze()
        told = await asyncio.gather(*(fleet.chat(each.text, at=1, **each.options) for each in held))
        assert [outcome_of(reply) for reply in told] == ["unknown_execution"] * len(held)
        await slept(fleet, story.random.uniform(0, 0.3))
        fleet.replicas[0].thaw()
        ends = [await outcome(each.task) for each in held]
        story.tell(f"round {number}: after the retries were told: {counted(ends)}")
        assert ends == ["lease_lost"] * len(held)
        for each in held:
            for at in (0, 1):
                again = await fleet.chat(each.text, at=at, **each.options)
                assert (again.status, again.code) == (409, "unknown_execution")
            assert await texts(fleet, each.name) == []
            assert (await fleet.chat(f"{each.name} new", session_id=each.name)).status == 200
            assert calls_with(fleet, each.text) == 1


def outcome_of(reply: Reply) -> str | None:
    """The code of a refusal, also of a stream that ended with it."""
    return reply.code or ("unknown_execution" if b"unknown_execution" in reply.body else None)


@rounds(short=1, long=30, limit_s=600)
async def test_nobody_asked_while_it_slept(start, story, rounds):
    """G2, G5: past its own deadline it commits nothing, though nobody took its place; within it, it commits as ever."""
    fleet = await start(2, *LEASE)
    for number in range(rounds):
        for seconds, expected in ((LEASE_S * 0.3, "ok"), (LEASE_S * story.random.uniform(1.2, 1.8), "lease_lost")):
            held = [await hold(fleet, f"r{number}-{expected}-{form.replace(' ', '-')}", form) for form in FORMS]
            await asyncio.sleep(0.4)  # at least one renewal, so that the deadline is not that of the grant
            fleet.replicas[0].freeze()
            await slept(fleet, seconds)
            fleet.replicas[0].thaw()
            ends = [await outcome(each.task) for each in held]
            story.tell(f"round {number}: slept {seconds:.2f} s unnoticed: {counted(ends)}")
            assert ends == [expected] * len(held)
            for each in held:
                again = await fleet.chat(each.text, at=1, **each.options)
                assert outcome_of(again) == (None if expected == "ok" else "unknown_execution")
                assert await texts(fleet, each.name) == ([each.text] * 2 if expected == "ok" else [])
                began = time.monotonic()
                assert (await fleet.chat("next", session_id=each.name, at=1)).status == 200
                assert time.monotonic() - began < 0.5
                assert calls_with(fleet, each.text) == 1


@rounds(short=1, long=20, limit_s=600)
async def test_a_stopped_turn_cleans_up_late(start, story, rounds):
    """G2, G7: asked to stop, its replica asleep, its place taken: its clean-up ends nobody but itself."""
    fleet = await start(2, *LEASE)
    for number in range(rounds):
        held = [await hold(fleet, f"r{number}-{form.replace(' ', '-')}", form) for form in FORMS]
        fleet.replicas[0].freeze()
        for each in held:
            asked = await fleet.request("POST", f"/api/sessions/{each.name}/cancel", at=1)
            assert len(asked.json()["turns"]) == 1
        successors = [
            asyncio.create_task(fleet.chat(f"{each.name} new", session_id=each.name, model="gate", at=1))
            for each in held
        ]
        await fleet.upstream.until(lambda up: up.running == 2 * len(FORMS))
        fleet.replicas[0].thaw()
        ends = [await outcome(each.task) for each in held]
        story.tell(f"round {number}: stopped while asleep: {counted(ends)}")
        assert set(ends) <= {"lease_lost", "turn_cancelled"}
        for each in held:
            (live,) = (await fleet.session(each.name, at=1)).json()["live"]
            assert live["expires_in_ms"] > 0
        fleet.upstream.release()
        assert [(await asked).status for asked in successors] == [200] * len(held)
        for each in held:
            assert await texts(fleet, each.name) == [f"{each.name} new"] * 2
            told = await fleet.chat(each.text, at=1, **each.options)
            assert (told.status, told.code) == (409, "turn_cancelled")


@rounds(short=1, long=10)
async def test_who_waits_on_a_sleeping_replica_is_passed(start, story, rounds):
    """G3, G13: a waiter whose replica sleeps past its patience is not run when it wakes, and those behind do not wait
    for it."""
    fleet = await start(2, *LEASE, "--turn-wait", "4s")
    for number in range(rounds):
        name = f"s{number}"
        running = await fleet.hold(f"{name} first", session_id=name, at=1)
        sleeping = asyncio.create_task(fleet.chat(f"{name} sleeping", session_id=name, at=0))
        while (await fleet.session(name, at=1)).json()["queued"] != 1:
            await asyncio.sleep(0.01)
        fleet.replicas[0].freeze()
        fleet.upstream.release()
        began = time.monotonic()
        behind = await fleet.chat(f"{name} behind", session_id=name, at=1)
        took = time.monotonic() - began
        assert (behind.status, (await running).status) == (200, 200)
        await asyncio.sleep(max(0, began + 4.2 - time.monotonic()))
        fleet.replicas[0].thaw()
        ended = await outcome(sleeping)
        story.tell(f"round {number}: the one behind was done after {took:.2f} s, the sleeping one: {ended}")
        # The second when it fell asleep while it asked the store: that answer is past its time, too.
        assert ended in ("session_busy", "storage_unavailable")
        assert calls_with(fleet, f"{name} sleeping") == 0
