"""turn_begin: one at a time. Waiting, being refused, limits."""

from __future__ import annotations

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Busy, Queued, Word
from tests.lua.stage import CHOSEN, HOUR_MS, MINTED, OPENING, T1, T2, T3, T4, Stage


async def test_a_second_turn_waits(stage: Stage) -> None:
    """G3: it is told its place, who holds the conversation and for how long at most; asking again keeps the place."""
    await stage.granted(T1, by="r1")
    outcome = await stage.begin(T2, by="r2")
    assert isinstance(outcome, Queued)
    assert (outcome.place, outcome.session_id, outcome.holder) == (1, "chat-42", "r1")
    assert stage.settings.lease_ms - 1_000 < outcome.left_ms <= stage.settings.lease_ms
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T2}@r2"]
    vouch = await stage.vouch_of(T2)
    assert vouch is not None
    assert 0 < vouch <= stage.settings.vouch_ms
    async with stage.unchanged(slack_ms=1_000):
        again = await stage.begin(T2, by="r2")
    assert isinstance(again, Queued)
    assert again.place == 1


async def test_waiters_run_in_order_of_arrival(stage: Stage) -> None:
    """G3: once free, only the head is granted, whoever asks first."""
    first = await stage.granted(T1)
    for place, turn in enumerate((T2, T3, T4), 1):
        assert isinstance(outcome := await stage.begin(turn), Queued)
        assert outcome.place == place
    await stage.finish(first.fence)
    assert isinstance(behind := await stage.begin(T3), Queued)
    assert (behind.place, behind.left_ms) == (2, 0)
    second = await stage.granted(T2)
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r1", f"{T4}@r1"]
    assert await stage.vouch_of(T2) is None
    await stage.finish(second.fence, turn=T2)
    await stage.granted(T3)


async def test_a_newcomer_does_not_overtake_a_waiter(stage: Stage) -> None:
    """G3: a free conversation with somebody in line is not free for a newcomer; `reject` is told busy."""
    first = await stage.granted(T1)
    await stage.begin(T2)
    await stage.finish(first.fence)
    async with stage.unchanged():
        assert await stage.begin(T3, policy="reject") == Busy("r1", 0)
    assert isinstance(await stage.begin(T3), Queued)


async def test_reject_is_told_busy(stage: Stage) -> None:
    """G3: `reject` neither waits nor writes."""
    await stage.granted(T1, by="r2")
    async with stage.unchanged():
        outcome = await stage.begin(T2, policy="reject")
    assert isinstance(outcome, Busy)
    assert outcome.holder == "r2"
    assert 0 < outcome.left_ms <= stage.settings.lease_ms


async def test_a_waiter_that_rejects_leaves_and_wakes_the_next(stage: Stage) -> None:
    """G3: a refused waiter leaves no trace in the queue."""
    await stage.granted(T1)
    await stage.begin(T2)
    await stage.begin(T3, by="r2")
    async with stage.mailbox("r2") as received:
        assert isinstance(await stage.begin(T2, policy="reject"), Busy)
        assert await received() == [f"wake {T3}"]
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r2"]
    assert await stage.vouch_of(T2) is None


async def test_a_full_queue_refuses(stage: Stage) -> None:
    """G3: beyond `queue_limit` a newcomer is told full and nothing is written; those in line keep their place."""
    limit = {"queue_limit": 2}
    await stage.granted(T1)
    await stage.begin(T2, settings=limit)
    await stage.begin(T3, settings=limit)
    async with stage.unchanged():
        assert await stage.begin(T4, settings=limit) == Word("full")
    assert isinstance(await stage.begin(T3, settings=limit), Queued)


async def test_a_waiter_whose_replica_died_is_dropped(stage: Stage) -> None:
    """G3: nobody vouches for it any more, so the next moves up."""
    first = await stage.granted(T1)
    await stage.begin(T2, by="r2")
    await stage.begin(T3)
    await stage.end_vouch(T2)
    assert isinstance(outcome := await stage.begin(T3), Queued)
    assert outcome.place == 1
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r1"]
    assert await stage.vouch_of(T2) is None
    await stage.finish(first.fence)
    await stage.granted(T3)


async def test_a_grant_clears_waiters_that_are_gone(stage: Stage) -> None:
    """G3: a dead head does not block a newcomer, and nothing is left of it."""
    first = await stage.granted(T1)
    await stage.begin(T2)
    await stage.finish(first.fence)
    await stage.end_vouch(T2)
    await stage.granted(T3)
    assert not await stage.client.exists(stage.keys.queue(CHOSEN.cid), stage.keys.waiting)


async def test_a_dead_turn_is_taken_over(stage: Stage) -> None:
    """G6: a lease that ended blocks nobody, and its turn loses it in the step that takes its place."""
    dead = await stage.granted(T1)
    await stage.end_lease(T1)
    taken = await stage.granted(T2)
    assert taken.fence > dead.fence
    assert taken.session_id == dead.session_id
    assert await stage.members(stage.keys.live(CHOSEN.cid)) == [T2]
    assert await stage.lease_of(T1) is None


async def test_a_dead_turn_does_not_let_a_newcomer_pass_the_head(stage: Stage) -> None:
    """G3, G6: after a crash the conversation is the head's."""
    await stage.granted(T1)
    await stage.begin(T2)
    await stage.end_lease(T1)
    assert isinstance(await stage.begin(T3), Queued)
    await stage.granted(T2)


async def test_side_by_side_turns_do_not_wait(stage: Stage) -> None:
    """A7: turns of an opening's session run together, each with its own lease and fence."""
    grants = [await stage.granted(turn, OPENING, exclusive=False) for turn in (T1, T2, T3)]
    assert len({grant.session_id for grant in grants}) == 1
    fences = [grant.fence for grant in grants]
    assert fences == sorted(set(fences))
    assert await stage.members(stage.keys.live(OPENING.cid)) == [T1, T2, T3]
    assert await stage.members(stage.keys.running) == [T1, T2, T3]
    for turn, fence in zip((T1, T2, T3), fences, strict=True):
        assert await stage.finish(fence, turn=turn, target=OPENING) == "finished"


async def test_a_dead_turn_beside_is_left_to_its_status(stage: Stage) -> None:
    """A7, G2: nobody took its place, so a side-by-side grant leaves it its holder's."""
    grant = await stage.granted(T1, OPENING, exclusive=False)
    await stage.end_lease(T1)
    await stage.granted(T2, OPENING, exclusive=False)
    assert await stage.finish(grant.fence, target=OPENING) == "finished"


async def test_waiters_of_a_deleted_session_are_refused(stage: Stage) -> None:
    """G4: one who named it is told not found; one who did not is told that it moved, and nothing is opened."""
    grant = await stage.granted(T1, OPENING)
    named = Target(OPENING.cid, grant.session_id)
    assert isinstance(await stage.begin(T2, OPENING), Queued)
    assert isinstance(await stage.begin(T3, named), Queued)
    await stage.delete(named, force=True)
    async with stage.unchanged():
        assert await stage.begin(T2, OPENING, expected=grant.session_id) == Word("moved")
        assert await stage.begin(T3, named, expected=grant.session_id) == Word("not_found")
    reopened = await stage.granted(T4, OPENING)
    assert reopened.session_id != grant.session_id
    assert await stage.begin(T2, OPENING, expected=grant.session_id) == Word("moved")


async def test_a_waiter_is_refused_when_everything_was_lost(stage: Stage) -> None:
    """G4, J12: the session it waited for is gone, so it does not open another in its place."""
    grant = await stage.granted(T1, OPENING)
    await stage.begin(T2, OPENING)
    await stage.client.flushall()
    assert await stage.begin(T2, OPENING, expected=grant.session_id) == Word("moved")
    assert await stage.snapshot() == {}


async def test_the_cap_turns_newcomers_away(stage: Stage) -> None:
    """G10: with as many turns running as may, over all conversations of the tenant, nothing is written."""
    cap = {"max_running": 2}
    await stage.granted(T1, CHOSEN, settings=cap)
    await stage.granted(T2, OPENING, exclusive=False, settings=cap)
    async with stage.unchanged():
        assert await stage.begin(T3, OPENING, exclusive=False, settings=cap) == Word("limited")
        assert await stage.begin(T3, MINTED, settings=cap) == Word("limited")
    await stage.end_lease(T2)
    await stage.granted(T3, MINTED, settings=cap)


async def test_a_head_of_the_queue_keeps_its_place_at_the_cap(stage: Stage) -> None:
    """G10: it stays in line, vouched for, and runs as soon as there is room."""
    cap = {"max_running": 1}
    first = await stage.granted(T1, CHOSEN)
    await stage.begin(T2, CHOSEN)
    await stage.granted(T3, OPENING)
    await stage.finish(first.fence)
    await stage.client.zincrby(stage.keys.waiting, -1_000, T2)
    assert await stage.begin(T2, CHOSEN, settings=cap) == Queued(1, "chat-42", "r1", 0)
    assert (await stage.vouch_of(T2) or 0) > 2_000
    assert await stage.begin(T4, MINTED, settings=cap) == Word("limited")
    await stage.end_lease(T3)
    await stage.granted(T2, CHOSEN, settings=cap)


@pytest.mark.parametrize("policy", ["wait", "reject"])
async def test_a_lease_from_before_the_clock_stepped_back_is_one_lease(stage: Stage, policy: str) -> None:
    """G9: it is read as one lease, and is one from then on, so that a dead holder blocks for no longer."""
    await stage.granted(T1)
    await stage.step_clock_back()
    outcome = await stage.begin(T2, policy=policy)
    assert isinstance(outcome, Busy | Queued)
    assert 0 < outcome.left_ms <= stage.settings.lease_ms
    assert (await stage.lease_of(T1) or HOUR_MS) <= stage.settings.lease_ms


async def test_a_vouch_from_before_the_clock_stepped_back_is_one_vouch(stage: Stage) -> None:
    """G9, G3: a live waiter keeps its place, a dead one blocks for one vouch and not for an hour."""
    first = await stage.granted(T1)
    await stage.begin(T2)
    await stage.finish(first.fence)
    await stage.step_clock_back()
    assert isinstance(behind := await stage.begin(T3), Queued)
    assert behind.place == 2
    assert (await stage.vouch_of(T2) or HOUR_MS) <= stage.settings.vouch_ms
    await stage.granted(T2)


async def test_the_cap_counts_a_lease_from_before_the_clock_stepped_back_for_one_lease(stage: Stage) -> None:
    """G9, G10: slots expire with their lease, also after the clock stepped back."""
    await stage.granted(T1, CHOSEN)
    await stage.step_clock_back()
    assert await stage.begin(T2, OPENING, exclusive=False, settings={"max_running": 1}) == Word("limited")
    assert (await stage.lease_of(T1) or HOUR_MS) <= stage.settings.lease_ms
