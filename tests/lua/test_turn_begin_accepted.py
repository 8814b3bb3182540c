"""turn_begin: work that is written down now and granted later, and turns that follow on a point of the transcript."""

from __future__ import annotations

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Accepted, Ended, Granted, Queued, Seen, Word
from tests.lua.stage import CHOSEN, HOUR_MS, KEY, OPENING, T1, T2, T3, Stage


async def test_accepted_work_is_written_down(stage: Stage) -> None:
    """F6, I4, K1: with its request, under its key, in its session; nothing runs, and its replica vouches for it."""
    outcome = await stage.keyed(T1, OPENING, request=b"work\x00", about=b"a", keep_ms=HOUR_MS, nonce=16 * "a")
    assert outcome == Accepted(f"ses_{OPENING.cid}_1_{16 * 'a'}", 1, 0)
    record = await stage.fields(stage.keys.turn(T1))
    assert (record[b"state"], record[b"request"], record[b"about"]) == (b"accepted", b"work\x00", b"a")
    assert (record[b"keep_ms"], record[b"replica"], b"fence" in record) == (b"3600000", b"r1", False)
    assert (await stage.hash(stage.keys.idempotency(KEY)))["turn"] == T1
    assert 0 < (await stage.acceptance_of(T1) or 0) <= stage.settings.vouch_ms
    assert await stage.members(stage.keys.turns(OPENING.cid)) == [T1]
    assert not await stage.client.exists(stage.keys.running, stage.keys.live(OPENING.cid))
    view = await stage.status(T1, OPENING, digest=KEY)
    assert view is not None
    assert (view.state, view.request, view.about, view.stored) == ("accepted", b"work\x00", b"a", True)


async def test_a_repeated_acceptance_is_the_same(stage: Stage) -> None:
    """J2: the lost reply is told again, and an exact retry is told whose the key is."""
    first = await stage.keyed(T1, OPENING, request=b"work")
    async with stage.unchanged():
        assert await stage.keyed(T1, OPENING, request=b"work") == first
        assert isinstance(seen := await stage.keyed(T2, OPENING, request=b"work"), Seen)
        assert await stage.keyed(T2, OPENING, request=b"work", fingerprint="f2") == Word("conflict")
    assert seen.turn == T1


async def test_accepted_work_does_not_wait_for_its_conversation(stage: Stage) -> None:
    """I4: it is accepted while a turn runs, and stands in nobody's way until it asks."""
    held = await stage.granted(T1)
    await stage.accepted(T2)
    assert not await stage.client.exists(stage.keys.queue(CHOSEN.cid))
    await stage.finish(held.fence)
    await stage.granted(T3)


async def test_accepted_work_is_granted_when_it_asks(stage: Stage) -> None:
    """I4: by the replica that accepted it, once, with a fence; its request is not kept any longer."""
    accepted = await stage.keyed(T1, request=b"work", about=b"a")
    assert isinstance(accepted, Accepted)
    grant = await stage.keyed_grant(T1)
    assert grant.session_id == accepted.session_id
    record = await stage.hash(stage.keys.turn(T1))
    assert (record["state"], record["about"], "request" in record) == ("running", "a", False)
    assert await stage.acceptance_of(T1) is None
    assert await stage.lease_of(T1) is not None
    async with stage.unchanged():
        assert await stage.keyed(T1) == grant
    assert await stage.finish(grant.fence, digest=KEY) == "finished"
    assert await stage.keyed(T1, request=b"work") == Ended("completed")


async def test_a_later_grant_leaves_the_request_of_its_key_alone(stage: Stage) -> None:
    """F2: whoever resumes the work does not know it, and need not: what the key stands for was settled before."""
    await stage.keyed(T1, request=b"work")
    await stage.granted(T1, digest=KEY, fingerprint="")
    assert isinstance(await stage.keyed(T2, request=b"work"), Seen)
    assert await stage.keyed(T2, request=b"work", fingerprint="f2") == Word("conflict")


async def test_accepted_work_that_waits_is_vouched_for(stage: Stage) -> None:
    """I4, G10: in the queue, or at the tenant's cap, it is not taken for abandoned."""
    held = await stage.granted(T1)
    await stage.accepted(T2)
    await stage.client.zincrby(stage.keys.accepted, -1_000, T2)
    assert isinstance(await stage.begin(T2), Queued)
    assert (await stage.acceptance_of(T2) or 0) > 2_000
    await stage.finish(held.fence)
    await stage.granted(T2)
    await stage.accepted(T3, OPENING)
    await stage.client.zincrby(stage.keys.accepted, -1_000, T3)
    assert await stage.begin(T3, OPENING, settings={"max_running": 1}) == Word("limited")
    assert (await stage.acceptance_of(T3) or 0) > 2_000


async def test_what_was_accepted_has_its_place_in_a_full_queue(stage: Stage) -> None:
    """G3, I4: a full queue takes nothing more, accepted or not; what it took before is not turned away afterwards."""
    held = await stage.granted(T1)
    await stage.accepted(T2)
    await stage.begin(T3, by="r2", settings={"queue_limit": 1})
    async with stage.unchanged():
        for work in (b"work", b""):
            assert await stage.begin("9" * 32, request=work, settings={"queue_limit": 1}) == Word("full")
    assert isinstance(await stage.begin(T2, settings={"queue_limit": 1}), Queued)
    await stage.finish(held.fence)
    await stage.granted(T3, by="r2")


async def test_only_its_replica_can_start_it(stage: Stage) -> None:
    """I4: another one is told that it is not its turn, until it has claimed it."""
    await stage.accepted(T1)
    async with stage.unchanged():
        assert await stage.begin(T1, by="r2") == Ended("accepted")
    await stage.end_acceptance(T1)
    assert await stage.claim(T1, by="r2") is not None
    async with stage.unchanged():
        assert await stage.begin(T1, by="r1") == Ended("accepted")
    assert isinstance(await stage.begin(T1, by="r2"), Granted)


async def test_accepted_work_of_a_session_that_ended_is_refused(stage: Stage) -> None:
    """G4: it was accepted for that session and for no other."""
    accepted = await stage.accepted(T1, OPENING)
    named = Target(OPENING.cid, accepted.session_id)
    assert await stage.delete(named) == []
    assert await stage.begin(T1, named) == Word("not_found")


async def test_accepted_work_can_be_given_up(stage: Stage) -> None:
    """I3, G8: it ends without a grant, its request goes, its key tells the end."""
    await stage.keyed(T1, request=b"work")
    for _ in range(2):
        assert await stage.abandon(None, "cancelled", digest=KEY) == "abandoned"
    record = await stage.hash(stage.keys.turn(T1))
    assert (record["state"], "request" in record) == ("cancelled", False)
    assert await stage.acceptance_of(T1) is None
    assert (await stage.hash(stage.keys.idempotency(KEY)))["state"] == "cancelled"
    assert await stage.begin(T1) == Ended("cancelled")


async def test_accepted_work_that_waits_leaves_its_queue(stage: Stage) -> None:
    """G3: given up while it waits, it stands in nobody's way, and whoever is behind it is woken."""
    await stage.granted(T1)
    await stage.accepted(T2)
    await stage.begin(T2)
    await stage.begin(T3, by="r2")
    async with stage.mailbox("r2") as received:
        assert await stage.abandon(None, "cancelled", turn=T2) == "abandoned"
        assert await received() == [f"wake {T3}"]
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r2"]


async def test_what_was_granted_meanwhile_is_not_given_up(stage: Stage) -> None:
    """I3: whoever gives up accepted work does not hold the grant, and is told that it runs."""
    await stage.accepted(T1)
    grant = await stage.granted(T1)
    async with stage.unchanged():
        assert await stage.abandon(None, "cancelled") == Ended("running")
    assert await stage.finish(grant.fence) == "finished"


async def test_a_record_may_say_how_long_it_is_kept(stage: Stage) -> None:
    """I1: a stored answer outlives others; a refusal of it does not."""
    grant = await stage.granted(T1, keep_ms=100 * HOUR_MS)
    await stage.finish(grant.fence)
    assert 99 * HOUR_MS < await stage.ttl_ms(stage.keys.turn(T1)) <= 100 * HOUR_MS
    grant = await stage.granted(T2, keep_ms=100 * HOUR_MS)
    await stage.abandon(grant.fence, "refused", turn=T2)
    assert await stage.ttl_ms(stage.keys.turn(T2)) <= stage.settings.refusal_ttl_ms


async def test_a_turn_may_follow_on_a_point_of_the_transcript(stage: Stage) -> None:
    """I2: where the transcript has gone on since, a fork has to be made, and nothing is written."""
    await stage.used(messages=[b"m1", b"m2"])
    async with stage.unchanged():
        assert await stage.begin(T2, length=1) == Word("branch")
        assert await stage.begin(T2, length=3) == Word("branch")
    assert (await stage.granted(T2, length=2)).history == [b"m1", b"m2"]


async def test_a_waiter_whose_transcript_went_on_leaves(stage: Stage) -> None:
    """I2, G3: it is judged when its turn comes, and the one behind it is woken."""
    held = await stage.granted(T1)
    await stage.begin(T2, length=0)
    await stage.begin(T3, by="r2")
    await stage.finish(held.fence, messages=[b"m"])
    async with stage.mailbox("r2") as received:
        assert await stage.begin(T2, length=0) == Word("branch")
        assert await received() == [f"wake {T3}"]
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r2"]


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_the_length_of_the_transcript_is_told_with_the_answer(stage: Stage, state: str) -> None:
    """I2: it is what a later turn follows on."""
    await stage.used(turn=T2, messages=[b"m1"])
    grant = await stage.granted(T1)
    await stage.finish(grant.fence, state=state, messages=[b"m2", b"m3"])  # type: ignore[arg-type]  # both are its states
    view = await stage.status()
    assert view is not None
    assert view.length == 3
