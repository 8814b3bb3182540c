"""A store that stops answering, for less than a lease and for more, and one that forgets everything."""

from __future__ import annotations

import asyncio
import time

from tests.faults.scenario import calls_with, counted, outcome, rounds, texts

FORMS = {"json": ("gate", False), "stream": ("gate", True), "stream under way": ("gate_mid", True)}


async def hold_all(fleet, prefix):
    """A keyed turn of each form, half of them on each replica; their upstream waits."""
    held = {}
    for number, (form, (model, stream)) in enumerate(FORMS.items()):
        name = f"{prefix}-{form.replace(' ', '-')}"
        options = {"model": model, "stream": stream, "session_id": name, "key": name}
        asking = asyncio.create_task(fleet.chat(f"{name} a b", at=number % 2, **options))
        held[name] = options, asking
    await fleet.upstream.until(lambda up: up.running == len(FORMS))
    return held


@rounds(short=1, long=20)
async def test_frozen_for_less_than_a_lease(start, story, store, rounds):
    """G5, B11: every turn goes on and commits; whether the upstream ends before, within or after the absence."""
    fleet = await start(2, "--lease-ttl", "3s")
    for number in range(rounds):
        for moment in story.random.sample(("within", "after"), 1 if rounds == 1 else 2):
            held = await hold_all(fleet, f"r{number}-{moment}")
            await asyncio.sleep(story.random.uniform(0, 0.5))
            seconds = story.random.uniform(0.8, 1.4)
            store.freeze()
            if moment == "within":
                fleet.upstream.release()
            await asyncio.sleep(seconds)
            store.thaw()
            if moment == "after":
                await asyncio.sleep(0.3)
                fleet.upstream.release()
            ends = [await outcome(asking) for _, asking in held.values()]
            story.tell(f"round {number}: frozen for {seconds:.2f} s, upstream done {moment} it: {counted(ends)}")
            assert ends == ["ok"] * len(held)
            for name, (options, _) in held.items():
                again = await fleet.chat(f"{name} a b", **options)
                assert (again.status, again.replayed) == (200, True)
                assert await texts(fleet, name) == [f"{name} a b"] * 2
                assert calls_with(fleet, f"{name} a b") == 1


@rounds(short=1, long=20)
async def test_frozen_for_more_than_a_lease(start, story, store, rounds):
    """G5, G9: every turn is stopped by its own deadline, upstream too, while the store can grant nobody anything; when
    it is back nothing is held, nothing of them is recorded, and their keys say so."""
    fleet = await start(2, "--lease-ttl", "1s")
    for number in range(rounds):
        held = await hold_all(fleet, f"r{number}")
        await asyncio.sleep(story.random.uniform(0, 0.7))
        store.freeze()
        frozen = time.monotonic()
        ends = [await outcome(asking) for _, asking in held.values()]
        took = time.monotonic() - frozen
        await fleet.upstream.until(lambda up: up.running == 0)
        assert fleet.upstream.aborted == len(held) * (number + 1)
        assert ends == ["lease_lost"] * len(held)
        assert took < 1.5
        await asyncio.sleep(story.random.uniform(0, 0.5))
        store.thaw()
        thawed = time.monotonic()
        following = await asyncio.gather(
            *(fleet.chat(f"{name} next", session_id=name, at=n % 2) for n, name in enumerate(held))
        )
        story.tell(f"round {number}: stopped after {took:.2f} s, free {time.monotonic() - thawed:.2f} s after the thaw")
        assert [reply.status for reply in following] == [200] * len(held)
        assert time.monotonic() - thawed < 2
        for name, (options, _) in held.items():
            again = await fleet.chat(f"{name} a b", **options)
            assert "unknown_execution" in again.body.decode()
            assert await texts(fleet, name) == [f"{name} next"] * 2
            assert calls_with(fleet, f"{name} a b") == 1


@rounds(short=1, long=10)
async def test_everything_is_lost(start, story, store, rounds):
    """J12, B21: after FLUSHALL live turns are fenced, nothing is wedged, no id comes back, and fences go on above."""
    fleet = await start(2, "--lease-ttl", "1s", "--implicit-turns", "exclusive")
    ids: set[str] = set()
    fences: list[int] = []
    for number in range(rounds):
        opening = [{"role": "user", "content": "hello"}]
        implicit = asyncio.create_task(fleet.chat(opening, model="gate", at=0, key=f"k{number}"))
        explicit = asyncio.create_task(fleet.chat("one two", model="gate_mid", at=1, session_id="s", stream=True))
        await fleet.upstream.until(lambda up: up.running == 2)
        (session,) = [
            each for each in (await fleet.request("GET", "/api/sessions")).json()["data"] if each["kind"] == "i"
        ]
        waiting = asyncio.create_task(fleet.chat("one", at=0, session_id="s"))
        await asyncio.sleep(0.1)
        shown = [(await fleet.session(name)).json() for name in (session["id"], "s")]
        before = [each["live"][0]["fence"] for each in shown]
        assert session["id"] not in ids
        ids.add(session["id"])
        assert min(before) > max([0, *fences])
        fences += before
        store.flushall()
        ends = [await outcome(asking) for asking in (implicit, explicit)]
        assert ends == ["lease_lost"] * 2
        story.tell(f"round {number}: everything lost: {counted(ends)}, the waiter {await outcome(waiting)}")
        fleet.upstream.release()
        for at in (0, 1):
            assert (await fleet.chat("again", session_id="s", at=at)).status == 200
        fresh = await fleet.chat(opening, at=number % 2, key=f"k{number}")
        assert (fresh.status, fresh.replayed, fresh.session_id in ids) == (200, False, False)
        ids.add(fresh.session_id)
        store.flushall()
