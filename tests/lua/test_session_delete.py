"""session_delete: one step after which nothing resolves to the session and nothing writes to it."""

from __future__ import annotations

import pytest

from coordinator.identity import Explicit, Target, target_of
from coordinator.outcomes import Busy, Ended, Word
from tests.lua.stage import CHOSEN, DECLARED, HOST, HOUR_MS, KEY, OPENING, T1, T2, T3, TENANT, Stage, at_once


async def test_a_session_is_retired_in_one_step(stage: Stage) -> None:
    """E1, E2: generation and nonce move on, the id is empty, the transcript is gone, a tombstone is left."""
    first = await stage.used(OPENING, messages=[b"secret"])
    before = await stage.now_ms()
    assert await stage.delete(Target(OPENING.cid, first.session_id), token="d1") == []
    conversation = await stage.hash(stage.keys.conversation(OPENING.cid))
    assert (conversation["session"], conversation["generation"]) == ("", "2")
    assert (conversation["ended_by"], conversation["ended_token"]) == ("deleted", "d1")
    assert conversation["nonce"] != first.nonce
    assert not await stage.client.exists(stage.keys.messages(OPENING.cid), stage.keys.sessions)
    assert await stage.score(stage.keys.tombstones, OPENING.cid) >= before


async def test_the_turns_are_put_aside_for_erasing(stage: Stage) -> None:
    """E4, E5: what has a record is listed until it is erased, apart from that of which the receipts go too."""
    for number, receipts in enumerate((False, True, False)):
        first = await stage.used(OPENING, turn=f"{number:032x}")
        named = Target(OPENING.cid, first.session_id)
        await stage.delete(named, generation=number + 1, token=f"d{number}", receipts=receipts)
    assert await stage.members(stage.keys.leftovers(OPENING.cid)) == [f"{0:032x}", f"{2:032x}"]
    assert await stage.members(stage.keys.purging(OPENING.cid)) == [f"{1:032x}"]
    assert await stage.members(stage.keys.erasing) == [OPENING.cid]
    assert not await stage.client.exists(stage.keys.turns(OPENING.cid))


async def test_a_chosen_id_is_remembered_in_a_few_bytes(stage: Stage) -> None:
    """B1, E6: its digest stays, as a number in a set of numbers; nothing stays of an id of ours."""
    first = await stage.used(OPENING)
    await stage.delete(Target(OPENING.cid, first.session_id))
    assert await stage.client.keys("*retired*") == []
    await stage.used(CHOSEN, turn=T2)
    await stage.delete(CHOSEN)
    bucket = stage.keys.retired(CHOSEN.retired_bucket)
    assert await stage.members(bucket) == [CHOSEN.retired_id]
    assert CHOSEN.retired_id.isdigit()
    assert await stage.ttl_ms(bucket) == -1


async def test_an_unknown_session_is_not_found(stage: Stage) -> None:
    """E1, J3: never there, of another generation, or retired before by somebody else; nothing changes."""
    assert await stage.delete(CHOSEN) == Word("not_found")
    assert await stage.snapshot() == {}
    first = await stage.used(OPENING)
    named = Target(OPENING.cid, first.session_id)
    await stage.delete(named, token="d1")
    async with stage.unchanged():
        assert await stage.delete(named, token="d2") == Word("not_found")
        assert await stage.delete(Target(OPENING.cid, f"ses_{OPENING.cid}_1_{16 * 'b'}"), token="d2") == Word(
            "not_found"
        )
    await stage.granted(T2, OPENING)
    async with stage.unchanged():
        assert await stage.delete(named, token="d2", force=True) == Word("not_found")


async def test_a_repeated_deletion_is_answered_as_the_first(stage: Stage) -> None:
    """E1, J2: the same token again is deleted, names the same turns, and changes nothing."""
    await stage.granted(T1)
    await stage.used(OPENING, turn=T2)
    assert await stage.delete(token="d1", force=True) == [T1]
    async with stage.unchanged():
        assert await stage.delete(token="d1", force=True) == [T1]
        assert await stage.delete(token="d1") == [T1]
    await stage.abandon(None, "cancelled")
    assert await stage.delete(token="d1") == [T1]


async def test_a_deletion_repeated_after_the_conversation_reopened_spares_the_new_session(stage: Stage) -> None:
    """E1, A3: the first deletion's token is answered, and the session that came after is not touched."""
    first = await stage.used(OPENING)
    named = Target(OPENING.cid, first.session_id)
    await stage.delete(named, token="d1")
    second = await stage.granted(T2, OPENING)
    async with stage.unchanged():
        assert await stage.delete(named, token="d1", force=True) == []
    assert await stage.finish(second.fence, turn=T2, target=OPENING) == "finished"


async def test_a_live_turn_makes_it_busy(stage: Stage) -> None:
    """E3: who holds it and for how long at most; nothing is written."""
    await stage.granted(T1, by="r2")
    async with stage.unchanged():
        outcome = await stage.delete()
    assert isinstance(outcome, Busy)
    assert outcome.holder == "r2"
    assert 0 < outcome.left_ms <= stage.settings.lease_ms


async def test_a_waiter_makes_it_busy(stage: Stage) -> None:
    """E3: also when nobody runs at the moment."""
    grant = await stage.granted(T1)
    await stage.begin(T2)
    await stage.finish(grant.fence)
    async with stage.unchanged():
        assert await stage.delete() == Busy("r1", 0)


async def test_the_dead_do_not_make_it_busy(stage: Stage) -> None:
    """E3, E2: expired leases and waiters that are gone do not count, and are fenced and cleared with the rest."""
    grant = await stage.granted(T1)
    await stage.begin(T2)
    await stage.end_lease(T1)
    await stage.end_vouch(T2)
    assert await stage.delete() == []
    assert not await stage.client.exists(
        stage.keys.running, stage.keys.waiting, stage.keys.live(CHOSEN.cid), stage.keys.queue(CHOSEN.cid)
    )
    assert await stage.finish(grant.fence) == Word("lost")
    view = await stage.status()
    assert view is not None
    assert view.state == "interrupted"


async def test_force_ends_live_turns_as_cancelled(stage: Stage) -> None:
    """E3: each is fenced in that step and asked to stop, on whichever replica holds it."""
    first = await stage.keyed_grant(T1, OPENING, exclusive=False)
    second = await stage.granted(T2, OPENING, exclusive=False, by="r2")
    ended = await stage.delete(Target(OPENING.cid, first.session_id), force=True)
    assert isinstance(ended, list)
    assert sorted(ended) == [T1, T2]
    assert await stage.renew(T1, T2) == (set(), {T1, T2})
    async with stage.unchanged():
        assert await stage.append(first.fence, [b"late"], target=OPENING) == Word("cancelled")
        assert await stage.finish(second.fence, turn=T2, target=OPENING) == Word("cancelled")
    view = await stage.status(T1, OPENING, digest=KEY)
    assert view is not None
    assert view.state == "cancelled"
    assert await stage.begin(T1, OPENING, exclusive=False) == Ended("cancelled")


async def test_force_sends_waiters_home(stage: Stage) -> None:
    """E3, G4: they are woken to be refused, and the queue is empty."""
    await stage.granted(T1)
    await stage.begin(T2, by="r2")
    await stage.begin(T3, by="r2")
    async with stage.mailbox("r2") as received:
        await stage.delete(force=True)
        assert await received() == [f"wake {T2}", f"wake {T3}"]
    assert not await stage.client.exists(stage.keys.queue(CHOSEN.cid), stage.keys.waiting)
    assert await stage.begin(T2, by="r2") == Word("not_found")


async def test_other_sessions_are_untouched(stage: Stage) -> None:
    """B3: neither an id that begins alike nor any other changes, also where the id looks like a pattern."""
    others = [target_of(TENANT, Explicit(name)) for name in ("chat-421", "chat-4", "chat-42 ", "a", "")]
    for number, other in enumerate(others):
        await stage.granted(f"{number:032x}", other)
    await stage.granted(T1, target_of(TENANT, Explicit("*")))
    await stage.granted(T2, CHOSEN)
    assert await stage.delete(target_of(TENANT, Explicit("*")), force=True) == [T1]
    assert await stage.delete(CHOSEN, force=True) == [T2]
    turns = [f"{number:032x}" for number in range(len(others))]
    assert await stage.members(stage.keys.running) == turns
    assert await stage.renew(*turns) == (set(), set())


@pytest.mark.parametrize("force", [False, True])
async def test_a_lease_from_before_the_clock_stepped_back_is_one_lease(stage: Stage, force: bool) -> None:
    """G9: a dead holder makes it busy for a lease at most, and force ends it like any other."""
    await stage.granted(T1)
    await stage.step_clock_back()
    outcome = await stage.delete(force=force)
    if force:
        assert outcome == [T1]
    else:
        assert isinstance(outcome, Busy)
        assert 0 < outcome.left_ms <= stage.settings.lease_ms
        assert (await stage.lease_of(T1) or HOUR_MS) <= stage.settings.lease_ms


async def test_of_deletions_at_once_one_retires(stage: Stage, store_url: str) -> None:
    """E1: of twenty deletions with tokens of their own one retires the session, nineteen do not find it."""
    first = await stage.used(OPENING)
    named = Target(OPENING.cid, first.session_id)
    outcomes = await at_once(store_url, 20, lambda racer, number: racer.delete(named, token=f"d{number}"))
    assert sorted(outcomes, key=repr) == [Word("not_found")] * 19 + [[]]
    assert (await stage.hash(stage.keys.conversation(OPENING.cid)))["generation"] == "2"


async def test_one_deletion_sent_by_many_at_once_is_one(stage: Stage, store_url: str) -> None:
    """E1, J2: twenty sendings of one deletion are all answered as deleted, and one generation passes."""
    first = await stage.used(OPENING)
    named = Target(OPENING.cid, first.session_id)
    assert await at_once(store_url, 20, lambda racer, _: racer.delete(named, token="d1")) == [[]] * 20
    assert (await stage.hash(stage.keys.conversation(OPENING.cid)))["generation"] == "2"


async def test_deleting_a_declared_session_moves_its_conversation_on(stage: Stage) -> None:
    """C6: a deletion is a boundary."""
    first = await stage.used(DECLARED)
    assert await stage.delete(Target(DECLARED.cid, first.session_id)) == []
    second = await stage.granted(T2, DECLARED)
    assert second.generation == 2
    assert (await stage.hash(stage.keys.conversation(DECLARED.cid)))["ended_by"] == "deleted"


async def test_a_hosts_id_is_deleted_with_its_record(stage: Stage) -> None:
    """E2: an id that was only recorded is retired too, and what was recorded of it is gone."""
    await stage.record(HOST, key="")
    assert await stage.delete(HOST) == []
    assert await stage.steps().host_session(TENANT, HOST.named) is None
    assert await stage.begin(T1, HOST) == Word("not_found")
    async with stage.unchanged():
        assert await stage.delete(HOST) == []
        assert await stage.delete(HOST, token="d2") == Word("not_found")
