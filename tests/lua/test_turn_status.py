"""turn_status: the one way in which a turn's state reaches anybody."""

from __future__ import annotations

import pytest

from coordinator.outcomes import Ended, TurnView, Word
from tests.lua.stage import ANSWER, CHOSEN, HOUR_MS, KEY, OPENING, T1, T2, T3, Stage, at_once


async def test_an_unknown_turn_has_no_state(stage: Stage) -> None:
    """I3, J3: never granted is told as unknown, and nothing appears."""
    assert await stage.status(T1) is None
    assert await stage.snapshot() == {}


async def test_a_running_turn_tells_its_lease(stage: Stage) -> None:
    """K1, G2: the record as it is, and how long the lease still runs; looking changes nothing."""
    grant = await stage.keyed_grant(T1, by="r2", route="runs")
    async with stage.unchanged():
        view = await stage.status(T1, digest=KEY)
    assert isinstance(view, TurnView)
    assert stage.settings.lease_ms - 1_000 < view.left_ms <= stage.settings.lease_ms
    assert view == TurnView(
        turn=T1, state="running", cid=CHOSEN.cid, session_id="chat-42", generation=1, fence=grant.fence, replica="r2",
        route="runs", key_digest=KEY, started_ms=view.started_ms, ended_ms=None, left_ms=view.left_ms, kept="none",
        event_count=0, result=None,
    )  # fmt: skip


async def test_a_finished_turn_tells_its_answer(stage: Stage) -> None:
    """F1, J4: the answer comes back byte for byte, and telling it changes nothing."""
    grant = await stage.keyed_grant(T1)
    await stage.finish(grant.fence, digest=KEY, kept="events", events=[b"e1", b"e2"])
    async with stage.unchanged():
        view = await stage.status(T1, digest=KEY)
    assert view is not None
    assert (view.state, view.result, view.kept, view.event_count) == ("completed", ANSWER, "events", 2)
    assert (view.left_ms, view.ended_ms is not None) == (0, True)


async def test_a_dead_turn_is_settled_before_it_is_told(stage: Stage) -> None:
    """G6, F5, F7: it becomes interrupted for everybody: record, key and lease change in the step that tells it."""
    grant = await stage.keyed_grant(T1)
    await stage.end_lease(T1)
    view = await stage.status(T1, digest=KEY)
    assert view is not None
    assert (view.state, view.left_ms) == ("interrupted", 0)
    assert not await stage.client.exists(stage.keys.running, stage.keys.live(CHOSEN.cid))
    assert (await stage.hash(stage.keys.idempotency(KEY)))["state"] == "interrupted"
    assert 0 < await stage.ttl_ms(stage.keys.idempotency(KEY)) <= stage.settings.key_ttl_ms
    assert 0 < await stage.ttl_ms(stage.keys.turn(T1)) <= stage.settings.result_ttl_ms
    # From here on the holder, should it come back, is refused.
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"late"]) == Ended("interrupted")
        assert await stage.finish(grant.fence, digest=KEY) == Ended("interrupted")
        assert await stage.abandon(grant.fence, "failed", digest=KEY) == Ended("interrupted")
        assert await stage.renew(T1) == ({T1}, set())


async def test_settling_a_dead_turn_wakes_the_next(stage: Stage) -> None:
    """G6, G11: the head of the queue hears of it at once."""
    await stage.granted(T1)
    await stage.begin(T2, by="r2")
    await stage.end_lease(T1)
    async with stage.mailbox("r2") as received:
        await stage.status(T1)
        await stage.status(T1)
        assert await received() == [f"wake {T2}"]


async def test_a_turn_whose_place_was_taken_is_interrupted(stage: Stage) -> None:
    """G6, G8: the dead turn reads interrupted, and the one that took its place is not touched."""
    await stage.granted(T1)
    await stage.end_lease(T1)
    taken = await stage.granted(T2)
    view = await stage.status(T1)
    assert view is not None
    assert view.state == "interrupted"
    assert await stage.members(stage.keys.live(CHOSEN.cid)) == [T2]
    assert await stage.finish(taken.fence, turn=T2) == "finished"


async def test_a_turn_of_a_deleted_session_is_cancelled(stage: Stage) -> None:
    """E3, G8: a live turn that a deletion ended reads cancelled, for everybody and for good."""
    grant = await stage.keyed_grant(T1)
    await stage.delete(force=True)
    view = await stage.status(T1, digest=KEY)
    assert view is not None
    assert view.state == "cancelled"
    assert not await stage.client.exists(stage.keys.cancelling)
    assert await stage.finish(grant.fence, digest=KEY) == Ended("cancelled")


@pytest.mark.parametrize("state", ["completed", "failed", "refused", "cancelled"])
async def test_a_terminal_state_never_changes(stage: Stage, state: str) -> None:
    """G8: the first terminal state is what everybody is told from then on."""
    grant = await stage.keyed_grant(T1)
    if state == "completed":
        await stage.finish(grant.fence, digest=KEY)
    else:
        await stage.abandon(grant.fence, state, digest=KEY)  # type: ignore[arg-type]  # the other three are its states
    async with stage.unchanged():
        for _ in range(2):
            view = await stage.status(T1, digest=KEY)
            assert view is not None
            assert view.state == state
        assert await stage.finish(grant.fence, state="failed") in (Ended(state), "finished")  # type: ignore[arg-type]


async def test_a_key_that_names_another_turn_is_left_alone(stage: Stage) -> None:
    """F5: settling the interrupted turn again does not touch the key of the one that ran in its place."""
    await stage.keyed_grant(T1)
    await stage.end_lease(T1)
    await stage.client.hset(stage.keys.idempotency(KEY), mapping={"turn": T2, "state": "running"})
    await stage.status(T1, digest=KEY)
    assert (await stage.hash(stage.keys.idempotency(KEY)))["state"] == "running"


async def test_a_dead_turn_beside_others_leaves_them_alone(stage: Stage) -> None:
    """A7, G6: of turns that run side by side only the dead one is settled."""
    await stage.granted(T1, OPENING, exclusive=False)
    await stage.granted(T2, OPENING, exclusive=False)
    await stage.end_lease(T1)
    await stage.status(T1, OPENING)
    assert await stage.members(stage.keys.live(OPENING.cid)) == [T2]
    assert await stage.members(stage.keys.running) == [T2]


async def test_a_lease_from_before_the_clock_stepped_back_is_one_lease(stage: Stage) -> None:
    """G9: it is told as one lease and is one from then on; a dead turn is interrupted a lease later, not an hour."""
    await stage.granted(T1)
    await stage.step_clock_back()
    view = await stage.status(T1)
    assert view is not None
    assert 0 < view.left_ms <= stage.settings.lease_ms
    assert (await stage.lease_of(T1) or HOUR_MS) <= stage.settings.lease_ms


async def test_a_turn_without_a_key_is_kept_briefly(stage: Stage) -> None:
    """F7: nothing reads its record but people, so it goes soon after its end."""
    await stage.granted(T1)
    await stage.end_lease(T1)
    await stage.status(T1)
    assert 0 < await stage.ttl_ms(stage.keys.turn(T1)) <= stage.settings.unkeyed_ttl_ms


async def test_a_lost_record_ends_its_cancellation(stage: Stage) -> None:
    """G7: a mark on a turn that nobody knows is dropped; a live turn's mark stays."""
    await stage.granted(T3)
    await stage.client.sadd(stage.keys.cancelling, T1, T3)
    assert await stage.status(T1) is None
    await stage.status(T3)
    assert await stage.members(stage.keys.cancelling) == [T3]


async def test_being_told_interrupted_frees_the_conversation(stage: Stage) -> None:
    """G6: after the crash nothing blocks the next turn, and nothing is left of the dead one but its record."""
    dead = await stage.granted(T1)
    await stage.end_lease(T1)
    await stage.status(T1)
    await stage.granted(T2)
    assert await stage.finish(dead.fence) == Ended("interrupted")
    assert await stage.append(dead.fence + 1, [b"e"]) == Word("lost")


async def test_whoever_comes_first_decides_how_a_dead_turn_ended(stage: Stage, store_url: str) -> None:
    """F5, G8: a commit and nineteen looks at a dead turn at once: all are told the same end, commit included."""
    grant = await stage.keyed_grant()
    await stage.end_lease(T1)

    async def act(racer: Stage, number: int) -> object:
        if number == 10:
            return await racer.finish(grant.fence, digest=KEY)
        view = await racer.status(digest=KEY)
        return view.state if view else None

    outcomes = await at_once(store_url, 20, act)
    committed = outcomes.pop(10)
    end = "completed" if committed == "finished" else "interrupted"
    assert committed in ("finished", Ended("interrupted"))
    assert set(outcomes) == {end}
    assert (await stage.hash(stage.keys.turn(T1)))["state"] == end


async def test_settling_a_dead_turn_does_not_move_activity_back(stage: Stage) -> None:
    """C8, E6: it was at work until its lease ended; whoever was active later counts."""
    await stage.granted(T1, OPENING, exclusive=False)
    later = await stage.granted(T2, OPENING, exclusive=False)
    await stage.client.zadd(stage.keys.running, {T1: later.fence - HOUR_MS})
    await stage.status(T1, OPENING)
    assert (await stage.hash(stage.keys.conversation(OPENING.cid)))["active_ms"] >= str(later.fence - 1_000)
