"""session_erase: what is bulky of a retired session goes in bounded steps."""

from __future__ import annotations

from coordinator.identity import Target
from coordinator.outcomes import Granted, Seen
from tests.lua.stage import ANSWER, CHOSEN, HOUR_MS, KEY, OPENING, T1, T2, T3, T4, Stage


async def retired(stage: Stage, *, receipts: bool = False) -> None:
    """A session that ran a turn without a key (T1) and one with a key (T2), and was deleted."""
    grant = await stage.granted(T1)
    await stage.append(grant.fence, [b"secret"])
    await stage.finish(grant.fence, kept="events", first=2, events=[b"secret"], messages=[b"secret"])
    grant = await stage.keyed_grant(T2)
    await stage.finish(grant.fence, turn=T2, digest=KEY, kept="events", events=[b"secret"])
    await stage.client.hset(stage.keys.turn(T2), "request", "secret")
    assert await stage.delete(receipts=receipts) == []


async def test_a_turn_without_a_key_goes_whole(stage: Stage) -> None:
    """E4: neither its record nor its events are left."""
    await retired(stage)
    assert await stage.erase(CHOSEN, T1) == 1
    assert not await stage.client.exists(stage.keys.turn(T1), stage.keys.events(T1))


async def test_a_keyed_answer_is_kept_as_its_receipt(stage: Stage) -> None:
    """E4, F1: its events and its request go, the answer stays until its retention ends and is still replayed."""
    await retired(stage)
    before = await stage.ttl_ms(stage.keys.turn(T2))
    assert await stage.erase(CHOSEN, T1, T2) == 0
    assert not await stage.client.exists(stage.keys.events(T2))
    assert await stage.client.hget(stage.keys.turn(T2), "request") is None
    assert 0 < await stage.ttl_ms(stage.keys.turn(T2)) <= before
    view = await stage.status(T2, digest=KEY)
    assert view is not None
    assert (view.kept, view.result) == ("body", ANSWER)
    assert await stage.keyed(T3) == Seen(T2, CHOSEN.cid, "chat-42", "completed")


async def test_receipts_go_when_asked_for(stage: Stage) -> None:
    """E4, F2: the answer goes too; the key stays used, so that nothing runs again under it."""
    await retired(stage, receipts=True)
    assert await stage.erase(CHOSEN, T1, T2, receipts=True) == 0
    record = await stage.hash(stage.keys.turn(T2))
    assert (record["kept"], record["body"], record["headers"]) == ("none", "", "")
    assert await stage.keyed(T3) == Seen(T2, CHOSEN.cid, "chat-42", "completed")


async def test_no_text_of_the_session_is_left(stage: Stage) -> None:
    """E4: neither in its turns nor in its transcript."""
    await retired(stage)
    await stage.erase(CHOSEN, T1, T2)
    assert "secret" not in repr(await stage.snapshot())


async def test_erasing_goes_on_where_it_stopped(stage: Stage) -> None:
    """E5: each step tells how many are left; with the last the note that there is something to do goes."""
    await retired(stage)
    assert await stage.erase(CHOSEN, T2) == 1
    assert await stage.members(stage.keys.erasing) == [CHOSEN.cid]
    assert await stage.members(stage.keys.leftovers(CHOSEN.cid)) == [T1]
    assert await stage.erase(CHOSEN, T1) == 0
    assert not await stage.client.exists(stage.keys.erasing, stage.keys.leftovers(CHOSEN.cid))


async def test_a_session_without_turns_is_done_at_once(stage: Stage) -> None:
    """E5: nothing to erase answers 0, also when it is asked twice."""
    await retired(stage)
    await stage.client.unlink(stage.keys.leftovers(CHOSEN.cid))
    assert await stage.erase(CHOSEN) == 0
    async with stage.unchanged():
        assert await stage.erase(CHOSEN) == 0
    assert not await stage.client.exists(stage.keys.erasing)


async def test_a_repeated_step_erases_nothing_else(stage: Stage) -> None:
    """J2: a turn that is no leftover any more, or never was one, is not touched."""
    await retired(stage)
    await stage.erase(CHOSEN, T1, T2)
    kept = await stage.granted(T4, target=Target("m" + 24 * "0"))
    assert isinstance(kept, Granted)
    async with stage.unchanged():
        assert await stage.erase(CHOSEN, T1, T2, T4) == 0


async def test_a_turn_erased_while_it_ran_can_still_be_told_to_stop(stage: Stage) -> None:
    """E3: its mark outlives its record."""
    await stage.granted(T1)
    await stage.delete(force=True)
    await stage.erase(CHOSEN, T1)
    assert await stage.renew(T1) == (set(), {T1})


async def test_the_note_stays_while_either_kind_has_leftovers(stage: Stage) -> None:
    """E5: what was deleted with its receipts and what without are erased apart, and both are finished."""
    first = await stage.used(OPENING, turn=T1)
    await stage.delete(Target(OPENING.cid, first.session_id))
    second = await stage.used(OPENING, turn=T2)
    await stage.delete(Target(OPENING.cid, second.session_id), generation=2, token="d2", receipts=True)
    assert await stage.erase(OPENING, T1) == 0
    assert await stage.members(stage.keys.erasing) == [OPENING.cid]
    assert await stage.erase(OPENING, T2, receipts=True) == 0
    assert not await stage.client.exists(stage.keys.erasing)


async def test_a_turn_of_the_other_kind_is_left_for_its_own_step(stage: Stage) -> None:
    """E4: receipts that are to be kept are not erased with those that are not."""
    await retired(stage)
    async with stage.unchanged():
        assert await stage.erase(CHOSEN, T2, receipts=True) == 0


async def test_a_stored_answer_is_kept_no_longer_than_any_receipt(stage: Stage) -> None:
    """E4: what was to be readable for longer is a receipt now, for `result_ttl` at most; shorter stays shorter."""
    grant = await stage.keyed_grant(T1, keep_ms=100 * HOUR_MS)
    await stage.finish(grant.fence, digest=KEY)
    await stage.delete()
    await stage.erase(CHOSEN, T1)
    assert await stage.ttl_ms(stage.keys.turn(T1)) <= stage.settings.result_ttl_ms
    grant = await stage.keyed_grant(T2, OPENING, digest=32 * "e")
    await stage.finish(grant.fence, turn=T2, target=OPENING, digest=32 * "e")
    await stage.client.pexpire(stage.keys.turn(T2), 60_000)
    await stage.delete(Target(OPENING.cid, grant.session_id))
    await stage.erase(OPENING, T2)
    assert await stage.ttl_ms(stage.keys.turn(T2)) <= 60_000
