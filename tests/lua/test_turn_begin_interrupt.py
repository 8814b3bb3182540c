"""turn_begin: `interrupt` asks the running turn to stop and waits in front of everybody else."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Busy, Ended, Granted, Queued, Seen, Word
from tests.lua.stage import CHOSEN, KEY, OPENING, T1, T2, T3, T4, TENANT, Stage

INTERRUPT: dict[str, Any] = {"policy": "interrupt"}


async def test_it_asks_the_running_turn_to_stop(stage: Stage) -> None:
    """G3, G7: the wish is durable, its holder is sent a message, and nothing runs beside it meanwhile."""
    await stage.granted(T1, by="r2")
    async with stage.mailbox("r2") as received:
        outcome = await stage.begin(T2, **INTERRUPT)
        assert await received() == [f"cancel {T1}"]
    assert isinstance(outcome, Queued)
    assert (outcome.place, outcome.holder) == (1, "r2")
    assert await stage.members(stage.keys.cancelling) == [T1]
    assert await stage.renew(T1) == (set(), {T1})


@pytest.mark.parametrize("way_out", ["stops", "commits", "dies"])
async def test_it_is_granted_when_the_running_turn_has_left(stage: Stage, way_out: str) -> None:
    """G3, G8: however the running turn leaves; a commit that comes first counts."""
    first = await stage.granted(T1)
    await stage.begin(T2, **INTERRUPT)
    if way_out == "stops":
        assert await stage.abandon(first.fence, "failed") == Ended("cancelled")
    elif way_out == "commits":
        assert await stage.finish(first.fence) == "finished"
    else:
        await stage.end_lease(T1)
    second = await stage.granted(T2, **INTERRUPT)
    assert second.fence > first.fence
    view = await stage.status()
    assert view is not None
    assert view.state == ("completed" if way_out == "commits" else "cancelled")
    assert await stage.members(stage.keys.cancelling) == []


async def test_it_passes_those_who_wait(stage: Stage) -> None:
    """G3: it is first in line, a later one before an earlier one, and the others keep their order."""
    first = await stage.granted(T1)
    await stage.begin(T2)
    assert isinstance(early := await stage.begin(T3, **INTERRUPT), Queued)
    assert isinstance(late := await stage.begin(T4, **INTERRUPT), Queued)
    assert (early.place, late.place) == (1, 1)
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{turn}@r1" for turn in (T4, T3, T2)]
    await stage.abandon(first.fence, "cancelled")
    for turn in (T4, T3, T2):
        grant = await stage.granted(turn)
        await stage.finish(grant.fence, turn=turn)


async def test_it_stops_only_what_ran_when_it_came(stage: Stage) -> None:
    """G3: asked again, after another one got in before it, it waits for that one like everybody."""
    first = await stage.granted(T1)
    await stage.begin(T2, **INTERRUPT)
    await stage.begin(T3, **INTERRUPT)
    await stage.abandon(first.fence, "cancelled")
    await stage.granted(T3, **INTERRUPT)
    async with stage.mailbox("r1") as received:
        assert isinstance(await stage.begin(T2, **INTERRUPT), Queued)
        assert await received() == []
    assert await stage.members(stage.keys.cancelling) == []
    assert await stage.renew(T3) == (set(), set())


async def test_asking_again_keeps_the_place(stage: Stage) -> None:
    """J2: a poll, or a lost reply, neither moves it nor stops anything twice."""
    await stage.granted(T1)
    await stage.begin(T3)
    await stage.begin(T2, **INTERRUPT)
    async with stage.unchanged(slack_ms=1_000):
        assert isinstance(again := await stage.begin(T2, **INTERRUPT), Queued)
    assert again.place == 1


async def test_a_free_conversation_is_granted_at_once(stage: Stage) -> None:
    """G3: with nobody to stop it is a turn like any other, though somebody waits for the hand-off."""
    first = await stage.granted(T1)
    await stage.begin(T2)
    await stage.finish(first.fence)
    assert isinstance(await stage.begin(T3, **INTERRUPT), Granted)
    assert await stage.members(stage.keys.cancelling) == []
    assert isinstance(behind := await stage.begin(T2), Queued)
    assert behind.place == 1


async def test_a_full_queue_refuses_it_too(stage: Stage) -> None:
    """G3: what is refused stops nothing."""
    limit = {"queue_limit": 1}
    await stage.granted(T1)
    await stage.begin(T2, settings=limit)
    async with stage.unchanged():
        assert await stage.begin(T3, settings=limit, **INTERRUPT) == Word("full")


async def test_its_own_retry_is_not_interrupted(stage: Stage) -> None:
    """F3: the same request under the same key joins the turn instead of stopping it; another one is a conflict."""
    await stage.keyed_grant(T1)
    async with stage.unchanged():
        assert await stage.keyed(T2, **INTERRUPT) == Seen(T1, CHOSEN.cid, "chat-42", "running")
        assert await stage.keyed(T2, fingerprint="f2", **INTERRUPT) == Word("conflict")


async def test_turns_side_by_side_are_not_stopped(stage: Stage) -> None:
    """A7: where turns run side by side nothing is in the way."""
    await stage.granted(T1, OPENING, exclusive=False)
    assert isinstance(await stage.begin(T2, OPENING, exclusive=False, **INTERRUPT), Granted)
    assert await stage.members(stage.keys.cancelling) == []


async def test_a_retired_session_is_refused_before_anything_is_stopped(stage: Stage) -> None:
    """B1, E3: what names a session that is not current touches nobody."""
    grant = await stage.granted(T1, OPENING)
    stale = Target(OPENING.cid, grant.session_id.replace("_1_", "_7_"))
    async with stage.unchanged():
        assert await stage.begin(T2, stale, **INTERRUPT) == Word("not_found")


async def test_one_that_gives_up_leaves_no_trace(stage: Stage) -> None:
    """G3: the place is gone and those behind move up; what it asked to stop stays asked."""
    await stage.granted(T1)
    await stage.begin(T2, **INTERRUPT)
    await stage.begin(T3)
    assert await stage.abandon(None, turn=T2) == "abandoned"
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r1"]
    assert await stage.vouch_of(T2) is None
    assert await stage.members(stage.keys.cancelling) == [T1]


async def test_a_dead_one_does_not_stand_in_front(stage: Stage) -> None:
    """G3: nobody vouches for it any more, so the one behind it is granted."""
    first = await stage.granted(T1)
    await stage.begin(T2, **INTERRUPT)
    await stage.begin(T3)
    await stage.end_vouch(T2)
    await stage.abandon(first.fence, "cancelled")
    await stage.granted(T3)


async def test_what_is_asked_to_stop_cannot_take_its_successors_lease_with_it(stage: Stage) -> None:
    """G2: stopped late, by a holder that slept meanwhile, it ends as cancelled and its successor goes on."""
    first = await stage.keyed_grant(T1)
    await stage.begin(T2, **INTERRUPT)
    await stage.end_lease(T1)
    second = await stage.granted(T2, **INTERRUPT)
    assert await stage.renew(T1, T2) == (set(), {T1})
    assert await stage.finish(first.fence, digest=KEY) == Word("cancelled")
    assert await stage.abandon(first.fence, "cancelled", digest=KEY) == "abandoned"
    assert (await stage.lease_of(T2) or 0) > 0
    assert await stage.members(stage.keys.live(CHOSEN.cid)) == [T2]
    assert await stage.finish(second.fence, turn=T2) == "finished"


async def test_a_waiter_does_not_become_an_interrupter(stage: Stage) -> None:
    """G3: what counts is how it came: a waiter that asks with `interrupt` keeps its place and stops nothing."""
    await stage.granted(T1)
    await stage.begin(T2)
    await stage.begin(T3)
    async with stage.unchanged(slack_ms=1_000):
        assert isinstance(outcome := await stage.begin(T3, **INTERRUPT), Queued)
    assert outcome.place == 2


async def test_reject_is_busy_while_one_is_first_in_line(stage: Stage) -> None:
    """G3: the conversation is promised to it."""
    first = await stage.granted(T1)
    await stage.begin(T2, **INTERRUPT)
    await stage.abandon(first.fence, "cancelled")
    assert isinstance(await stage.begin(T3, policy="reject"), Busy)
    await stage.granted(T2)
    assert await stage.steps().conversation_end(TENANT, CHOSEN.cid) == ("chat-42", "")
