"""turn_finish: events, answer, transcript, key and lease in one step."""

from __future__ import annotations

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Ended, Seen, Word
from tests.lua.stage import ANSWER, CHOSEN, KEY, OPENING, T1, T2, T3, Stage


async def test_everything_is_committed_in_one_step(stage: Stage) -> None:
    """F9, H3: answer, events, transcript, key and release are there together, and the next turn sees them."""
    grant = await stage.keyed_grant()
    started = await stage.now_ms()
    await stage.append(grant.fence, [b"e1"])
    outcome = await stage.finish(
        grant.fence, digest=KEY, kept="events", first=2, events=[b"e2", b"e3"], messages=[b"m1", b"m2"]
    )
    assert outcome == "finished"
    assert await stage.log() == [b"e1", b"e2", b"e3"]
    assert await stage.transcript() == [b"m1", b"m2"]
    record = await stage.fields(stage.keys.turn(T1))
    assert {name: record[name] for name in (b"state", b"status", b"headers", b"content_type", b"body")} == {
        b"state": b"completed", b"status": b"200", b"headers": b"x: y", b"content_type": b"application/json",
        b"body": ANSWER.body,
    }  # fmt: skip
    assert (record[b"kept"], record[b"events"]) == (b"events", b"3")
    assert int(record[b"ended_ms"]) >= started
    assert (await stage.hash(stage.keys.idempotency(KEY)))["state"] == "completed"
    conversation = await stage.hash(stage.keys.conversation(CHOSEN.cid))
    assert conversation["turns"] == "1"
    assert int(conversation["active_ms"]) >= started
    assert await stage.score(stage.keys.sessions, CHOSEN.cid) >= started
    assert not await stage.client.exists(stage.keys.live(CHOSEN.cid), stage.keys.running)
    assert (await stage.granted(T2)).history == [b"m1", b"m2"]


async def test_retention_counts_from_the_end(stage: Stage) -> None:
    """F7: answer and log for `result_ttl`, the used key for `key_ttl`; the turn stays listed as long."""
    grant = await stage.keyed_grant()
    await stage.finish(grant.fence, digest=KEY, kept="events", events=[b"e1"])
    result_ms, key_ms = stage.settings.result_ttl_ms, stage.settings.key_ttl_ms
    for key in (stage.keys.turn(T1), stage.keys.events(T1)):
        assert result_ms - 2_000 < await stage.ttl_ms(key) <= result_ms
    assert key_ms - 2_000 < await stage.ttl_ms(stage.keys.idempotency(KEY)) <= key_ms
    listed_until = await stage.score(stage.keys.turns(CHOSEN.cid), T1)
    assert abs(listed_until - await stage.now_ms() - result_ms) < 2_000


async def test_a_key_may_stay_used_for_ever(stage: Stage) -> None:
    """F7: `key_ttl` 0 takes the expiry off."""
    grant = await stage.keyed_grant()
    await stage.finish(grant.fence, digest=KEY, settings={"key_ttl_ms": 0})
    assert await stage.ttl_ms(stage.keys.idempotency(KEY)) == -1


async def test_a_turn_without_a_key_is_kept_briefly(stage: Stage) -> None:
    """F7: ten minutes, for people who look."""
    await stage.used()
    unkeyed_ms = stage.settings.unkeyed_ttl_ms
    assert unkeyed_ms - 2_000 < await stage.ttl_ms(stage.keys.turn(T1)) <= unkeyed_ms


async def test_a_repeated_finish_is_finished(stage: Stage) -> None:
    """J2: the same answer and the same state; the transcript and the count of turns do not grow."""
    grant = await stage.keyed_grant()
    for _ in range(2):
        outcome = await stage.finish(grant.fence, digest=KEY, kept="events", events=[b"e1"], messages=[b"m1"])
        assert outcome == "finished"
    assert await stage.log() == [b"e1"]
    assert await stage.transcript() == [b"m1"]
    assert (await stage.hash(stage.keys.conversation(CHOSEN.cid)))["turns"] == "1"


async def test_a_repeated_finish_does_not_touch_the_next_turn(stage: Stage) -> None:
    """J2: a second sending that arrives when the next turn runs answers, and changes nothing."""
    grant = await stage.keyed_grant()
    await stage.finish(grant.fence, digest=KEY)
    await stage.granted(T2)
    async with stage.unchanged():
        assert await stage.finish(grant.fence, digest=KEY) == "finished"


async def test_events_already_in_the_log_are_not_repeated(stage: Stage) -> None:
    """H2: an append whose reply was lost and a finish that carries its events again are one log."""
    grant = await stage.keyed_grant()
    await stage.append(grant.fence, [b"1", b"2"])
    await stage.finish(grant.fence, digest=KEY, kept="events", first=2, events=[b"2", b"3"])
    assert await stage.log() == [b"1", b"2", b"3"]


async def test_a_gap_is_refused(stage: Stage) -> None:
    """H6, J3: a log with missing events is not completed, and nothing else is written either."""
    grant = await stage.keyed_grant()
    await stage.append(grant.fence, [b"1"])
    async with stage.unchanged():
        assert await stage.finish(grant.fence, digest=KEY, kept="events", first=3, events=[b"3"]) == Word("gap")


async def test_an_answer_kept_as_a_body_has_no_log(stage: Stage) -> None:
    """F4, E4: what a retry is answered from is kept, the rest goes."""
    grant = await stage.keyed_grant()
    await stage.append(grant.fence, [b"1"])
    await stage.finish(grant.fence, digest=KEY, kept="body", first=2, events=[b"2"], messages=[b"m"])
    record = await stage.fields(stage.keys.turn(T1))
    assert (record[b"kept"], record[b"events"], record[b"body"]) == (b"body", b"0", ANSWER.body)
    assert not await stage.client.exists(stage.keys.events(T1))
    assert await stage.transcript() == [b"m"]


async def test_an_answer_too_large_is_not_kept(stage: Stage) -> None:
    """F7: the key stays used, the body is not stored."""
    grant = await stage.keyed_grant()
    await stage.append(grant.fence, [b"1"])
    await stage.finish(grant.fence, digest=KEY, kept="none")
    record = await stage.hash(stage.keys.turn(T1))
    assert (record["kept"], record["body"], record["state"]) == ("none", "", "completed")
    assert not await stage.client.exists(stage.keys.events(T1))
    assert await stage.keyed(T2) == Seen(T1, CHOSEN.cid, "chat-42", "completed")


async def test_a_failed_turn_is_recorded_as_failed(stage: Stage) -> None:
    """F6: an answer that reports a failure after dispatch is recorded and replayed like any other."""
    grant = await stage.keyed_grant()
    assert await stage.finish(grant.fence, digest=KEY, state="failed") == "finished"
    view = await stage.status(digest=KEY)
    assert view is not None
    assert (view.state, view.result) == ("failed", ANSWER)
    assert (await stage.hash(stage.keys.idempotency(KEY)))["state"] == "failed"


async def test_the_next_waiter_is_woken(stage: Stage) -> None:
    """G11: the first that is alive, on its own replica; those that are gone are dropped."""
    grant = await stage.granted()
    await stage.begin(T2)
    await stage.begin(T3, by="r2")
    await stage.end_vouch(T2)
    async with stage.mailbox("r2") as received:
        await stage.finish(grant.fence)
        assert await received() == [f"wake {T3}"]
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r2"]
    assert await stage.members(stage.keys.waiting) == [T3]


async def test_an_ended_lease_that_nobody_took_still_commits(stage: Stage) -> None:
    """G2: work that was done is not thrown away for being late."""
    grant = await stage.granted()
    await stage.end_lease(T1)
    assert await stage.finish(grant.fence) == "finished"


@pytest.mark.parametrize("state", ["refused", "cancelled", "interrupted", "failed"])
async def test_a_turn_that_ended_otherwise_commits_nothing(stage: Stage, state: str) -> None:
    """G8: the first terminal state wins, and the late one is told it."""
    grant = await stage.keyed_grant()
    await stage.abandon(grant.fence, state, digest=KEY)  # type: ignore[arg-type]  # all four are its states
    async with stage.unchanged():
        assert await stage.finish(grant.fence, digest=KEY, messages=[b"m"]) == Ended(state)  # type: ignore[arg-type]


async def test_a_finish_in_the_other_state_commits_nothing(stage: Stage) -> None:
    """G8: completed stays completed."""
    grant = await stage.keyed_grant()
    await stage.finish(grant.fence, digest=KEY)
    async with stage.unchanged():
        assert await stage.finish(grant.fence, digest=KEY, state="failed") == Ended("completed")


async def test_a_cancelled_turn_commits_nothing(stage: Stage) -> None:
    """E3: a deletion fences its live turns, and says that they were cancelled, also once they were erased."""
    grant = await stage.granted(T1, OPENING)
    await stage.delete(Target(OPENING.cid, grant.session_id), force=True)
    async with stage.unchanged():
        assert await stage.finish(grant.fence, target=OPENING, messages=[b"m"]) == Word("cancelled")
    assert await stage.erase(OPENING, T1) == 0
    async with stage.unchanged():
        assert await stage.finish(grant.fence, target=OPENING, messages=[b"m"]) == Word("cancelled")


async def test_another_fence_commits_nothing(stage: Stage) -> None:
    """G2: every write names its fence."""
    grant = await stage.granted()
    async with stage.unchanged():
        assert await stage.finish(grant.fence - 1) == Word("lost")
        assert await stage.finish(grant.fence + 1) == Word("lost")


async def test_a_turn_whose_place_was_taken_commits_nothing(stage: Stage) -> None:
    """G2: the holder that was paused past its lease does not write over the new one."""
    grant = await stage.granted()
    await stage.end_lease(T1)
    await stage.granted(T2)
    async with stage.unchanged():
        assert await stage.finish(grant.fence, messages=[b"m"]) == Word("lost")


async def test_a_key_that_names_another_turn_is_left_alone(stage: Stage) -> None:
    """F5: committing does not touch the key of another turn."""
    grant = await stage.keyed_grant()
    await stage.client.hset(stage.keys.idempotency(KEY), mapping={"turn": T2, "state": "running"})
    assert await stage.finish(grant.fence, digest=KEY) == "finished"
    assert (await stage.hash(stage.keys.idempotency(KEY)))["state"] == "running"


async def test_a_turn_that_was_only_asked_to_stop_may_still_commit(stage: Stage) -> None:
    """G7, G8: the mark is a request; what finishes first is what counts, and the mark goes."""
    grant = await stage.granted()
    await stage.client.sadd(stage.keys.cancelling, T1)
    assert await stage.finish(grant.fence) == "finished"
    assert not await stage.client.exists(stage.keys.cancelling)
