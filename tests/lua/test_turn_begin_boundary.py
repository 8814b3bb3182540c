"""turn_begin, of a conversation that rested: its idle or daily boundary is judged when the next turn asks."""

from __future__ import annotations

import pytest

from coordinator.errors import ScriptError
from coordinator.outcomes import Busy, Granted, Queued, Seen, Word
from tests.lua.declared import HOME, IDLE_MS, begin_by, busy, generation, moved_on, named, rest
from tests.lua.stage import CHOSEN, HOUR_MS, KEY, MINTED, OPENING, T1, T2, T3, T4, Stage, at_once

DAY_MS = 24 * HOUR_MS


async def test_an_idle_conversation_begins_anew(stage: Stage) -> None:
    """C8, C6: the turn after the rest opens the next generation, and the old one is retired as by a reset."""
    first = await stage.used(HOME, messages=[b"secret"])
    await rest(stage, IDLE_MS + 1_000)
    grant = await begin_by(stage, idle_ms=IDLE_MS, turn=T2)
    assert isinstance(grant, Granted)
    assert (grant.generation, grant.history) == (2, [])
    assert grant.session_id != first.session_id
    assert grant.fence > first.fence
    assert (await stage.hash(stage.keys.conversation(HOME.cid)))["ended_by"] == "idle"
    assert await stage.members(stage.keys.leftovers(HOME.cid)) == [T1]
    assert await stage.members(stage.keys.sessions) == [HOME.cid]
    assert not await stage.client.exists(stage.keys.tombstones)
    assert await stage.begin(T3, named(HOME, first.session_id)) == Word("not_found")


async def test_rest_is_counted_from_the_last_activity(stage: Stage) -> None:
    """C8: neither a moment too early, nor without the policy, however long ago."""
    await stage.used(HOME)
    await rest(stage, IDLE_MS - 10_000)
    assert (await begin_by(stage, idle_ms=IDLE_MS, turn=T2)).generation == 1
    await stage.finish((await begin_by(stage, idle_ms=IDLE_MS, turn=T2)).fence, turn=T2, target=HOME)
    await rest(stage, 30 * DAY_MS)
    assert (await begin_by(stage, turn=T3)).generation == 1


async def test_a_commit_and_a_grant_are_activity(stage: Stage) -> None:
    """C8: a turn that took longer than the idle time is no rest, and what follows at once goes on in its session."""
    grant = await stage.granted(T1, HOME)
    await rest(stage, 2 * IDLE_MS)
    await stage.finish(grant.fence, target=HOME)
    assert (await begin_by(stage, idle_ms=IDLE_MS, turn=T2)).generation == 1


@pytest.mark.parametrize("state", ["refused", "cancelled", "failed", "interrupted"])
async def test_a_turn_that_ended_without_an_answer_is_activity(stage: Stage, state: str) -> None:
    """C8: it ran longer than the idle time and was stopped this moment: that was no rest either."""
    grant = await stage.granted(T1, HOME)
    await rest(stage, 2 * IDLE_MS)
    await stage.abandon(grant.fence, state, target=HOME)  # type: ignore[arg-type]
    assert (await begin_by(stage, idle_ms=IDLE_MS, turn=T2)).generation == 1


@pytest.mark.parametrize("told", [False, True])
async def test_a_turn_that_died_is_activity_until_its_lease_ended(stage: Stage, told: bool) -> None:
    """C8: rest begins where nobody held the conversation any more, not where its last holder began."""
    await stage.granted(T1, HOME)
    await rest(stage, 2 * IDLE_MS)
    await stage.end_lease(T1)
    if told:
        await stage.status(T1, HOME)
    assert (await begin_by(stage, idle_ms=IDLE_MS, turn=T2)).generation == 1


@pytest.mark.parametrize(
    ("rested_ms", "moments_ms", "moves"),
    [
        (5 * HOUR_MS, [4 * HOUR_MS], True),
        (3 * HOUR_MS, [4 * HOUR_MS], False),
        (5 * HOUR_MS, [-4 * HOUR_MS], False),
        (5 * HOUR_MS, [DAY_MS + 4 * HOUR_MS, 4 * HOUR_MS, 4 * HOUR_MS - DAY_MS], True),
        (3 * HOUR_MS, [DAY_MS + 4 * HOUR_MS, 4 * HOUR_MS, 4 * HOUR_MS - DAY_MS], False),
        (9 * DAY_MS, [DAY_MS + 4 * HOUR_MS, 4 * HOUR_MS, 4 * HOUR_MS - DAY_MS], True),
        (-HOUR_MS, [4 * HOUR_MS, 0], False),
    ],
    ids=["past", "before the rest", "to come", "of some days", "none since", "all since", "clock stepped back"],
)
async def test_a_daily_boundary_that_passed_since_ends_the_generation(
    stage: Stage, rested_ms: int, moments_ms: list[int], moves: bool
) -> None:
    """C8: the store's clock says which of the moments is past; one before the last activity does not count."""
    await stage.used(HOME)
    await rest(stage, rested_ms)
    grant = await begin_by(stage, *moments_ms, turn=T2)
    assert grant.generation == 1 + moves
    assert (await stage.hash(stage.keys.conversation(HOME.cid))).get("ended_by") == ("daily" if moves else None)


async def test_a_boundary_passes_once(stage: Stage) -> None:
    """C8: the turns after it go on in what it opened."""
    await stage.used(HOME)
    await rest(stage, 2 * IDLE_MS)
    second = await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2)
    await stage.finish(second.fence, turn=T2, target=HOME)
    third = await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T3)
    assert (third.generation, third.session_id) == (2, second.session_id)


async def test_a_repeated_admission_is_answered_as_the_first(stage: Stage) -> None:
    """J2, C5: the reply that opened a generation was lost: the same turn is told the same, and one boundary passed."""
    await stage.used(HOME)
    await rest(stage, 2 * IDLE_MS)
    grant = await begin_by(stage, idle_ms=IDLE_MS, turn=T2)
    async with stage.unchanged():
        assert await begin_by(stage, idle_ms=IDLE_MS, turn=T2) == grant
    assert await generation(stage) == 2


async def test_a_named_id_that_rested_too_long_is_not_found(stage: Stage) -> None:
    """C8, B1: it is retired then, not moved to what comes next; whoever asks by the key opens that."""
    first = await stage.used(HOME, messages=[b"secret"])
    await rest(stage, 2 * IDLE_MS)
    assert await begin_by(stage, idle_ms=IDLE_MS, turn=T2, target=named(HOME, first.session_id)) == Word("not_found")
    assert await generation(stage) == 2
    assert await stage.transcript(HOME) == []
    async with stage.unchanged():
        assert await begin_by(stage, idle_ms=IDLE_MS, turn=T2, target=named(HOME, first.session_id)) == Word(
            "not_found"
        )
    assert (await begin_by(stage, idle_ms=IDLE_MS, turn=T3)).generation == 2


async def test_a_live_turn_keeps_its_generation(stage: Stage) -> None:
    """C8: a boundary never fences a healthy turn that was running when it came due; who comes then waits."""
    first = await stage.granted(T1, HOME)
    await rest(stage, 2 * IDLE_MS)
    waiting = await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2)
    assert isinstance(waiting, Queued)
    assert waiting.session_id == first.session_id
    assert isinstance(await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T3, policy="reject"), Busy)
    assert await begin_by(stage, idle_ms=IDLE_MS, turn=T4, target=named(HOME, first.session_id)) is not None
    assert await stage.finish(first.fence, target=HOME) == "finished"
    assert (await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2)).session_id == first.session_id


async def test_a_waiter_is_served_in_the_session_it_waited_for(stage: Stage) -> None:
    """C8, G4: the turn in front of it ended; that the clock says otherwise now sends nobody home who stood in line."""
    first = await stage.granted(T1, HOME)
    await stage.begin(T2, HOME)
    await stage.finish(first.fence, target=HOME)
    await rest(stage, 2 * IDLE_MS)
    grant = await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2, expected=first.session_id)
    assert grant.session_id == first.session_id


async def test_the_dead_do_not_keep_a_generation(stage: Stage) -> None:
    """C8, G2: a holder whose lease ended long ago, and a waiter that is gone, are fenced by the boundary."""
    fence = await busy(stage, HOME, T1, waiting=[T2])
    await rest(stage, 3 * IDLE_MS)
    await stage.client.zadd(stage.keys.running, {T1: await stage.now_ms() - 2 * IDLE_MS})
    await stage.end_vouch(T2)
    grant = await begin_by(stage, idle_ms=IDLE_MS, turn=T3)
    assert (grant.generation, await stage.members(stage.keys.running)) == (2, [T3])
    assert await stage.finish(fence, target=HOME) == Word("lost")
    assert not await stage.client.exists(stage.keys.queue(HOME.cid), stage.keys.waiting)


@pytest.mark.parametrize("target", [OPENING, CHOSEN, MINTED], ids=["implicit", "chosen", "minted"])
async def test_only_declared_conversations_have_such_boundaries(stage: Stage, target: object) -> None:
    """C8: whatever the settings, all others go on where they were."""
    first = await stage.used(target)  # type: ignore[arg-type]
    await rest(stage, 30 * DAY_MS, target)  # type: ignore[arg-type]
    assert (await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2, target=target)).session_id == first.session_id


async def test_a_replay_is_no_admission(stage: Stage) -> None:
    """F1, C8: what the key answered is told, and the conversation stays as it is."""
    grant = await stage.keyed_grant(T1, HOME)
    await stage.finish(grant.fence, target=HOME, digest=KEY)
    await rest(stage, 2 * IDLE_MS)
    async with stage.unchanged():
        seen = await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2, digest=KEY, fingerprint="f1")
        assert seen == Seen(T1, HOME.cid, grant.session_id, "completed")
        conflict = await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2, digest=KEY, fingerprint="f2")
        assert conflict == Word("conflict")


async def test_a_rerun_does_not_follow_into_the_next_generation(stage: Stage) -> None:
    """F5: the turn to run again belonged to what the boundary ended: it is not run in what that opened."""
    first = await stage.keyed_grant(T1, HOME)
    await stage.end_lease(T1)
    await stage.status(T1, HOME, digest=KEY)
    await rest(stage, 2 * IDLE_MS)
    again = await begin_by(
        stage,
        idle_ms=IDLE_MS,
        turn=T2,
        target=named(HOME, first.session_id),
        digest=KEY,
        fingerprint="f1",
        instead_of=T1,
    )
    assert again == Word("not_found")


async def test_moments_that_are_none_are_refused_before_a_write(stage: Stage) -> None:
    """J3: half a list of moments is an error, not half a boundary."""
    await stage.used(HOME)
    await rest(stage, 2 * IDLE_MS)
    async with stage.unchanged():
        for wrong in ("abc", "9999999999999999", "1.5"):
            with pytest.raises(ScriptError, match="daily is not a whole number"):
                await stage.begin(T2, HOME, daily=wrong)


async def test_an_announced_generation_does_not_rest(stage: Stage) -> None:
    """C8: between a reset and the turn that uses it there is no session that could be idle."""
    await stage.used(HOME)
    await rest(stage, 30 * DAY_MS)
    announced = await moved_on(stage)
    grant = await begin_by(stage, HOUR_MS, idle_ms=IDLE_MS, turn=T2)
    assert (grant.generation, grant.session_id) == (2, announced.session_id)


async def test_of_first_turns_after_a_rest_all_are_in_one_generation(stage: Stage, store_url: str) -> None:
    """C8, C4: twenty at the same moment: one boundary, one holder, nineteen in line for the same session."""
    await stage.used(HOME, turn=T4)
    await rest(stage, 2 * IDLE_MS)
    outcomes = await at_once(
        store_url, 20, lambda racer, number: begin_by(racer, HOUR_MS, idle_ms=IDLE_MS, turn=f"{number:032x}")
    )
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1
    assert len({outcome.session_id for outcome in outcomes}) == 1
    assert await generation(stage) == 2
