"""prune: what is past the horizon goes; what somebody may still need stays."""

from __future__ import annotations

import pytest

from coordinator.errors import ScriptError
from coordinator.identity import Target
from coordinator.outcomes import Seen, Word
from tests.lua.stage import ANSWER, CHOSEN, DECLARED, HOUR_MS, KEY, MINTED, OPENING, T1, T2, T3, Stage


async def test_an_idle_conversation_is_dropped_whole(stage: Stage) -> None:
    """E6: a minted id is unknown from then on, a chosen one is simply new again."""
    minted = await stage.used(MINTED, messages=[b"m"])
    await stage.used(CHOSEN, turn=T2, messages=[b"m"])
    assert await stage.prune(MINTED, CHOSEN) == 2
    assert sorted(await stage.client.keys()) == sorted(stage.keys.turn(turn).encode() for turn in (T1, T2))
    assert await stage.begin(T3, Target(MINTED.cid, minted.session_id)) == Word("not_found")
    again = await stage.granted(T3, CHOSEN)
    assert (again.session_id, again.history) == ("chat-42", [])


async def test_a_tombstone_is_dropped(stage: Stage) -> None:
    """E6: nothing stays of a retired id of ours; of a chosen one its digest does."""
    minted = await stage.used(MINTED)
    await stage.delete(Target(MINTED.cid, minted.session_id))
    await stage.used(CHOSEN, turn=T2)
    await stage.delete(CHOSEN)
    await stage.erase(MINTED, T1)
    await stage.erase(CHOSEN, T2)
    assert await stage.prune(MINTED, CHOSEN) == 2
    assert await stage.client.keys() == [stage.keys.retired(CHOSEN.retired_bucket).encode()]


async def test_the_horizon_is_counted_from_activity_and_from_retirement(stage: Stage) -> None:
    """E6: what was active, or retired, since then stays as it is."""
    minted = await stage.used(MINTED)
    await stage.delete(Target(MINTED.cid, minted.session_id))
    await stage.used(OPENING, turn=T2)
    for key, target in ((stage.keys.tombstones, MINTED), (stage.keys.sessions, OPENING)):
        await stage.client.zadd(key, {target.cid: await stage.now_ms() - HOUR_MS})
    async with stage.unchanged():
        assert await stage.prune(MINTED, OPENING, horizon_ms=HOUR_MS + 60_000) == 0
    assert await stage.prune(MINTED, OPENING, horizon_ms=HOUR_MS) == 2


async def test_a_live_turn_keeps_its_conversation(stage: Stage) -> None:
    """E6: however long ago its activity; its turn commits afterwards."""
    grant = await stage.granted(T1)
    async with stage.unchanged():
        assert await stage.prune(CHOSEN) == 0
    assert await stage.finish(grant.fence) == "finished"


async def test_a_waiter_keeps_its_conversation(stage: Stage) -> None:
    """E6: somebody is about to use it."""
    grant = await stage.granted(T1)
    await stage.begin(T2)
    await stage.finish(grant.fence)
    async with stage.unchanged():
        assert await stage.prune(CHOSEN) == 0
    await stage.granted(T2)


async def test_the_dead_do_not_keep_a_conversation(stage: Stage) -> None:
    """E6: a crashed holder's lease and a crashed waiter's place go with it; no member is left behind."""
    await stage.granted(T1)
    await stage.begin(T2)
    await stage.end_lease(T1)
    await stage.end_vouch(T2)
    assert await stage.prune(CHOSEN) == 1
    assert await stage.client.keys() == [stage.keys.turn(T1).encode()]
    view = await stage.status()
    assert view is not None
    assert view.state == "interrupted"


async def test_a_dead_turn_is_not_one_of_the_session_that_is_opened_again(stage: Stage) -> None:
    """G1, E2: the same chosen id, new after pruning, does not take the old turn for its own."""
    dead = await stage.granted(T1)
    await stage.end_lease(T1)
    await stage.prune(CHOSEN)
    await stage.granted(T2)
    async with stage.unchanged():
        assert await stage.renew(T1) == ({T1}, set())
        assert await stage.append(dead.fence, [b"late"]) == Word("lost")
        assert await stage.finish(dead.fence, messages=[b"late"]) == Word("lost")
        assert await stage.abandon(dead.fence, "failed") == Word("lost")


async def test_receipts_outlive_their_conversation(stage: Stage) -> None:
    """E6, F1: a keyed answer is replayed until its own retention ends."""
    grant = await stage.keyed_grant(T1)
    await stage.finish(grant.fence, digest=KEY)
    assert await stage.prune(CHOSEN) == 1
    assert await stage.keyed(T2) == Seen(T1, CHOSEN.cid, "chat-42", "completed")
    view = await stage.status(digest=KEY)
    assert view is not None
    assert view.result == ANSWER


async def test_a_lease_from_before_the_clock_stepped_back_is_one_lease(stage: Stage) -> None:
    """G9: it protects for one lease and not for an hour."""
    await stage.granted(T1)
    await stage.step_clock_back()
    assert await stage.prune(CHOSEN) == 0
    assert (await stage.lease_of(T1) or HOUR_MS) <= stage.settings.lease_ms


async def test_others_are_untouched(stage: Stage) -> None:
    """E6: only the conversations that were named go."""
    await stage.used(CHOSEN)
    await stage.used(OPENING, turn=T2)
    assert await stage.prune(OPENING) == 1
    assert await stage.members(stage.keys.sessions) == [CHOSEN.cid]
    assert await stage.client.exists(stage.keys.conversation(CHOSEN.cid))


async def test_an_entry_without_its_conversation_is_dropped(stage: Stage) -> None:
    """E6: whichever list it is in, it does not stay there for ever."""
    await stage.client.zadd(stage.keys.sessions, {OPENING.cid: 1})
    await stage.client.zadd(stage.keys.tombstones, {MINTED.cid: 1})
    assert await stage.prune(OPENING, MINTED) == 2
    assert await stage.snapshot() == {}


async def test_a_conversation_in_no_list_is_left_alone(stage: Stage) -> None:
    """E6: without a time of its own nobody can say that it is past the horizon."""
    await stage.used(CHOSEN)
    await stage.client.zrem(stage.keys.sessions, CHOSEN.cid)
    async with stage.unchanged():
        assert await stage.prune(CHOSEN) == 0


async def test_a_repeated_step_is_answered_as_the_first(stage: Stage) -> None:
    """J2: it tells how many are gone, by whichever sending."""
    await stage.used(CHOSEN)
    await stage.used(OPENING, turn=T2)
    await stage.granted(T3, MINTED)
    assert [await stage.prune(CHOSEN, OPENING, MINTED) for _ in range(2)] == [2, 2]


async def test_a_generation_that_is_no_number_changes_nothing(stage: Stage) -> None:
    """J3: of any of the conversations that are named, before the first of them is touched."""
    await stage.used(CHOSEN)
    await stage.used(DECLARED, turn=T2)
    await stage.client.hset(stage.keys.conversation(DECLARED.cid), "generation", "abc")
    async with stage.unchanged():
        with pytest.raises(ScriptError, match="generation is not a whole number"):
            await stage.prune(CHOSEN, DECLARED)


async def test_a_counter_that_lost_its_fields_is_still_shrunk_whole(stage: Stage) -> None:
    """J3: fields that are missing stop nothing half-way."""
    await stage.used(DECLARED)
    await stage.reset(DECLARED)
    await stage.client.hdel(stage.keys.conversation(DECLARED.cid), "source", "nonce", "fence", "ended_by", "kind")
    assert await stage.prune(DECLARED) == 1
    assert (await stage.granted(T2, DECLARED)).generation == 2
