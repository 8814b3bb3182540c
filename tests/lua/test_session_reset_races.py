"""session_reset, beside turns, keys and clocks: what comes of both when they meet."""

from __future__ import annotations

import pytest

from coordinator.identity import Declared, Target, key_digest, target_of
from coordinator.outcomes import Granted, Reset, Seen, Word
from tests.lua.declared import ELSEWHERE, HOME, REASONS, busy, generation, moved_on, named
from tests.lua.stage import CHOSEN, HOUR_MS, KEY, MINTED, OPENING, T1, T2, T3, T4, Stage, at_once


@pytest.mark.parametrize("reason", REASONS)
async def test_each_reason_is_one_step(stage: Stage, reason: str) -> None:
    """C5, C6: generation and nonce move on with the retirement of the session, and the reason is told."""
    first = await stage.used(HOME, messages=[b"secret"])
    answer = await moved_on(stage, reason=reason, token="r1")
    conversation = await stage.hash(stage.keys.conversation(HOME.cid))
    assert (conversation["session"], conversation["generation"]) == ("", "2")
    assert (conversation["ended_by"], conversation["ended_token"], answer.reason) == (reason, "r1", reason)
    assert conversation["nonce"] != first.nonce
    assert answer.session_id == f"ses_{HOME.cid}_2_{conversation['nonce']}"
    assert not await stage.client.exists(stage.keys.messages(HOME.cid), stage.keys.sessions)


async def test_waiters_by_the_key_and_by_the_id_are_told_apart(stage: Stage) -> None:
    """C7, G4: who named the session does not find it any more, others it has moved; and none is left in the queue."""
    first = await stage.granted(T1, HOME)
    here = named(HOME, first.session_id)
    await stage.begin(T2, HOME, by="r2")
    await stage.begin(T3, here, by="r2")
    async with stage.mailbox("r2") as received:
        await moved_on(stage)
        assert await received() == [f"wake {T2}", f"wake {T3}"]
    async with stage.unchanged():
        assert await stage.begin(T2, HOME, by="r2", expected=first.session_id) == Word("moved")
        assert await stage.begin(T3, here, by="r2", expected=first.session_id) == Word("not_found")


async def test_a_key_is_answered_the_same_after_pruning(stage: Stage) -> None:
    """C7, B62: with other tokens, during a newer turn, after another reset, when a counter is left: one bump."""
    await stage.used(HOME)
    first = await moved_on(stage, token="r1", digest=KEY)
    newer = await stage.granted(T2, HOME)
    assert await moved_on(stage, token="r2", digest=KEY) == first
    assert await stage.finish(newer.fence, turn=T2, target=HOME) == "finished"
    await moved_on(stage, token="r3", digest=key_digest("k2"))
    await stage.prune(HOME)
    async with stage.unchanged():
        assert await moved_on(stage, token="r4", digest=KEY) == first
        assert await stage.reset(ELSEWHERE, token="r5", digest=KEY, fingerprint="f2") == Word("conflict")
    assert await generation(stage) == 3


async def test_the_newer_turn_lives_through_a_repeated_reset(stage: Stage) -> None:
    """J2, B62: the reply was lost and came again late: what runs since is not stopped by it."""
    await stage.used(HOME)
    await moved_on(stage, token="r1")
    newer = await stage.granted(T2, HOME)
    await moved_on(stage, token="r1")
    assert await stage.finish(newer.fence, turn=T2, target=HOME) == "finished"


@pytest.mark.parametrize("target", [OPENING, MINTED], ids=["implicit", "minted"])
async def test_turns_side_by_side_are_all_stopped(stage: Stage, target: Target) -> None:
    """C7: of conversations of ours that are not declared, too."""
    first = await stage.granted(T1, target, exclusive=False)
    await stage.granted(T2, target, exclusive=False)
    answer = await moved_on(stage, named(target, first.session_id))
    assert sorted(answer.stopped) == [T1, T2]
    assert (await stage.granted(T3, target)).session_id == answer.session_id


async def test_turns_elsewhere_run_on(stage: Stage) -> None:
    """C1: not the same key under another source, nor in another tenant, nor an id spelled like the key is touched."""
    others = [ELSEWHERE, CHOSEN, target_of("beta", Declared("telegram", "chat-42"))]
    fences = [await busy(stage, other, turn) for other, turn in zip(others, (T2, T3, T4), strict=True)]
    await busy(stage, HOME, T1)
    assert (await moved_on(stage)).stopped == [T1]
    assert [await generation(stage, other) for other in others] == [1, 1, 1]
    for other, turn, fence in zip(others, (T2, T3, T4), fences, strict=True):
        assert await stage.finish(fence, turn=turn, target=other) == "finished"


async def test_a_receipt_outlives_its_generation(stage: Stage) -> None:
    """F1, F2, C7: a keyed answer of the old generation is seen under its key, with its session id."""
    grant = await stage.keyed_grant(T1, HOME)
    await stage.finish(grant.fence, target=HOME, digest=KEY)
    await moved_on(stage)
    assert await stage.keyed(T2, HOME) == Seen(T1, HOME.cid, grant.session_id, "completed")
    assert await stage.keyed(T2, HOME, fingerprint="f2") == Word("conflict")


async def test_a_clock_that_steps_back_between_two_resets_changes_nothing(stage: Stage) -> None:
    """C5, B16: with every time an hour in the future the generation goes on as if nothing had happened."""
    await stage.used(HOME)
    first = await moved_on(stage, token="r1")
    await stage.granted(T2, HOME)
    ahead = await stage.now_ms() + HOUR_MS
    await stage.client.hset(stage.keys.conversation(HOME.cid), mapping={"active_ms": ahead, "created_ms": ahead})
    await stage.client.zadd(stage.keys.sessions, {HOME.cid: ahead})
    await stage.step_clock_back()
    second = await moved_on(stage, token="r2")
    assert (first.generation, second.generation, second.stopped) == (2, 3, [T2])
    await stage.client.zadd(stage.keys.tombstones, {HOME.cid: ahead})
    third = await stage.granted(T3, HOME)
    assert (third.generation, third.session_id) == (3, second.session_id)


async def test_resets_at_once_each_get_a_generation_of_their_own(stage: Stage, store_url: str) -> None:
    """C5: twenty unconditional ones open twenty generations, none of them twice."""
    await stage.used(HOME)
    answers = await at_once(store_url, 20, lambda racer, number: moved_on(racer, token=f"r{number}"))
    assert sorted(answer.generation for answer in answers) == list(range(2, 22))
    assert len({answer.session_id for answer in answers}) == 20


async def test_a_turn_racing_a_reset_is_wholly_in_one_generation(stage: Stage, store_url: str) -> None:
    """C7, G2: whichever came first, a turn that commits is of the session that was current then."""
    await stage.used(HOME, turn=T4)
    for number in range(20):
        token, turn = f"r{number}", f"{number:032x}"

        async def act(racer: Stage, who: int, token: str = token, turn: str = turn) -> Granted | Reset:
            return await (moved_on(racer, token=token) if who else racer.granted(turn, HOME))

        grant, answer = await at_once(store_url, 2, act)
        assert isinstance(grant, Granted)
        assert isinstance(answer, Reset)
        before = grant.session_id == answer.ended_session_id
        assert before or grant.session_id == answer.session_id
        assert (answer.stopped == [turn]) == before
        ended = await stage.finish(grant.fence, turn=turn, target=HOME)
        assert ended == (Word("cancelled") if before else "finished")
