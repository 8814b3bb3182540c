"""turn_cancel: a request to stop that no replica can miss."""

from __future__ import annotations

from coordinator.identity import Target
from coordinator.outcomes import Ended, Word
from tests.lua.stage import CHOSEN, HOUR_MS, OPENING, T1, T2, T3, Stage


async def side_by_side(stage: Stage) -> Target:
    """Two live turns, T1 and T2, of one session; the session."""
    grant = await stage.granted(T1, OPENING, exclusive=False)
    await stage.granted(T2, OPENING, exclusive=False, by="r2")
    return Target(OPENING.cid, grant.session_id)


async def test_every_live_turn_of_the_session_is_asked(stage: Stage) -> None:
    """G7: each hears it at its next renewal, whichever replica holds it; turns elsewhere do not."""
    session = await side_by_side(stage)
    await stage.granted(T3, CHOSEN)
    asked = await stage.cancel(session)
    assert isinstance(asked, list)
    assert sorted(asked) == [T1, T2]
    assert await stage.renew(T1, T2, T3) == (set(), {T1, T2})


async def test_one_turn_can_be_meant(stage: Stage) -> None:
    """G7: the others go on; one that is not of the session is not asked."""
    session = await side_by_side(stage)
    await stage.granted(T3, CHOSEN)
    assert await stage.cancel(session, T2) == [T2]
    assert await stage.cancel(session, T3) == []
    assert await stage.members(stage.keys.cancelling) == [T2]


async def test_asking_again_changes_nothing(stage: Stage) -> None:
    """J2: the same answer while they are live."""
    session = await side_by_side(stage)
    await stage.cancel(session, T1)
    async with stage.unchanged():
        assert await stage.cancel(session, T1) == [T1]


async def test_a_turn_that_stops_is_cancelled(stage: Stage) -> None:
    """G7, G8: it ends as cancelled whatever its holder calls it, and the mark goes with it."""
    grant = await stage.granted(T1)
    await stage.cancel(CHOSEN)
    assert await stage.abandon(grant.fence, "failed") == Ended("cancelled")
    assert not await stage.client.exists(stage.keys.cancelling)
    await stage.granted(T2)


async def test_a_turn_of_a_dead_replica_reads_cancelled(stage: Stage) -> None:
    """G7: nobody was left to hear it, and it did not go on either."""
    await stage.granted(T1)
    await stage.cancel(CHOSEN)
    await stage.end_lease(T1)
    view = await stage.status()
    assert view is not None
    assert view.state == "cancelled"


async def test_a_commit_that_comes_first_counts(stage: Stage) -> None:
    """G8: being asked to stop is not having stopped."""
    grant = await stage.granted(T1)
    await stage.cancel(CHOSEN)
    assert await stage.append(grant.fence, [b"e"]) == 1
    assert await stage.finish(grant.fence) == "finished"
    async with stage.unchanged():
        assert await stage.cancel(CHOSEN) == []


async def test_the_dead_are_not_asked(stage: Stage) -> None:
    """G7: a turn whose lease ended is not told of as stopping."""
    await stage.granted(T1)
    await stage.end_lease(T1)
    async with stage.unchanged():
        assert await stage.cancel(CHOSEN) == []


async def test_a_lease_from_before_the_clock_stepped_back_is_one_lease(stage: Stage) -> None:
    """G9: its turn is asked, and is dead a lease later."""
    await stage.granted(T1)
    await stage.step_clock_back()
    assert await stage.cancel(CHOSEN) == [T1]
    assert (await stage.lease_of(T1) or HOUR_MS) <= stage.settings.lease_ms


async def test_a_session_that_is_not_current_is_not_found(stage: Stage) -> None:
    """B1: unknown, or retired; the session that came after is left alone."""
    assert await stage.cancel(CHOSEN) == Word("not_found")
    assert await stage.snapshot() == {}
    first = await stage.used(OPENING)
    retired = Target(OPENING.cid, first.session_id)
    await stage.delete(retired)
    await stage.granted(T2, OPENING)
    async with stage.unchanged():
        assert await stage.cancel(retired) == Word("not_found")
