"""turn_begin: what an idempotency key names."""

from __future__ import annotations

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Ended, Queued, Seen, Word
from tests.lua.stage import CHOSEN, KEY, MINTED, OPENING, T1, T2, T3, T4, Stage

FOREVER = {"key_ttl_ms": 0}


async def test_the_grant_reserves_the_key(stage: Stage) -> None:
    """F1, F7: the key names turn, conversation and session, and outlives the longest turn."""
    await stage.keyed_grant(T1)
    assert await stage.hash(stage.keys.idempotency(KEY)) == {
        "fingerprint": "f1", "turn": T1, "cid": CHOSEN.cid, "session": "chat-42", "state": "running",
    }  # fmt: skip
    assert (await stage.hash(stage.keys.turn(T1)))["key"] == KEY
    kept_ms = stage.settings.turn_limit_ms + stage.settings.key_ttl_ms
    assert kept_ms - 2_000 < await stage.ttl_ms(stage.keys.idempotency(KEY)) <= kept_ms


async def test_a_key_may_stay_used_for_ever(stage: Stage) -> None:
    """F7: `key_ttl` 0 gives the key no expiry."""
    await stage.keyed_grant(T1, settings=FOREVER)
    assert await stage.ttl_ms(stage.keys.idempotency(KEY)) == -1


async def test_an_exact_retry_is_told_the_earlier_turn(stage: Stage) -> None:
    """F1, F3: while it runs, after it ended, wherever it is sent, and after its session was deleted; nothing runs."""
    grant = await stage.keyed_grant(T1)
    async with stage.unchanged():
        assert await stage.keyed(T2, by="r2") == Seen(T1, CHOSEN.cid, "chat-42", "running")
        assert await stage.keyed(T2, MINTED) == Seen(T1, CHOSEN.cid, "chat-42", "running")
    await stage.finish(grant.fence, digest=KEY)
    async with stage.unchanged():
        assert await stage.keyed(T2) == Seen(T1, CHOSEN.cid, "chat-42", "completed")
    await stage.delete(CHOSEN)
    async with stage.unchanged():
        assert await stage.keyed(T2) == Seen(T1, CHOSEN.cid, "chat-42", "completed")


async def test_another_request_under_the_key_is_a_conflict(stage: Stage) -> None:
    """F2: in every state after the grant, also when the session was deleted; nothing runs."""
    grant = await stage.keyed_grant(T1)
    async with stage.unchanged():
        assert await stage.keyed(T2, fingerprint="f2") == Word("conflict")
    await stage.finish(grant.fence, digest=KEY)
    assert await stage.keyed(T2, fingerprint="f2") == Word("conflict")
    await stage.delete(CHOSEN)
    async with stage.unchanged():
        assert await stage.keyed(T2, fingerprint="f2") == Word("conflict")


async def test_a_waiter_has_not_reserved_its_key(stage: Stage) -> None:
    """F6: the key is taken at the grant, never while waiting, nor by a refusal."""
    await stage.granted(T1)
    assert isinstance(await stage.keyed(T2), Queued)
    await stage.keyed(T3, policy="reject")
    assert not await stage.client.exists(stage.keys.idempotency(KEY))


async def test_of_identical_waiters_the_first_takes_the_key(stage: Stage) -> None:
    """F1, F6: the second learns of the first when its turn comes, leaves the queue and wakes the one behind."""
    first = await stage.granted(T1)
    await stage.keyed(T2)
    await stage.keyed(T3)
    await stage.begin(T4, by="r2")
    await stage.finish(first.fence)
    await stage.keyed_grant(T2)
    async with stage.mailbox("r2") as received:
        assert await stage.keyed(T3) == Seen(T2, CHOSEN.cid, "chat-42", "running")
        assert await received() == [f"wake {T4}"]
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T4}@r2"]


async def test_a_waiter_with_a_conflict_leaves(stage: Stage) -> None:
    """F2, G3: a key taken by another request meanwhile sends the waiter home."""
    await stage.granted(T1)
    await stage.keyed(T2)
    await stage.keyed_grant(T3, OPENING, fingerprint="f2")
    assert await stage.keyed(T2) == Word("conflict")
    assert not await stage.client.exists(stage.keys.queue(CHOSEN.cid), stage.keys.waiting)


async def test_an_interrupted_turn_runs_again_in_its_place(stage: Stage) -> None:
    """F5: once it was told interrupted, one retry takes the key over, under a new fence."""
    dead = await stage.keyed_grant(T1)
    await stage.end_lease(T1)
    await stage.status(T1, digest=KEY)
    again = await stage.keyed_grant(T2, instead_of=T1)
    assert again.fence > dead.fence
    key = await stage.hash(stage.keys.idempotency(KEY))
    assert (key["turn"], key["state"]) == (T2, "running")
    assert await stage.keyed(T3, instead_of=T1) == Seen(T2, CHOSEN.cid, "chat-42", "running")
    assert await stage.finish(dead.fence, digest=KEY) == Ended("interrupted")


async def test_a_live_turn_is_not_run_again(stage: Stage) -> None:
    """F5: `instead_of` is checked in the same step: a turn that still holds its lease keeps the key."""
    await stage.keyed_grant(T1)
    async with stage.unchanged():
        assert await stage.keyed(T2, instead_of=T1) == Seen(T1, CHOSEN.cid, "chat-42", "running")


async def test_a_rerun_is_of_the_same_request_only(stage: Stage) -> None:
    """F2, F5: naming the interrupted turn does not get another request past the key."""
    await stage.keyed_grant(T1)
    await stage.end_lease(T1)
    await stage.status(T1, digest=KEY)
    assert await stage.keyed(T2, instead_of=T1, fingerprint="f2") == Word("conflict")


async def test_an_interrupted_turn_of_a_deleted_session_does_not_run_again(stage: Stage) -> None:
    """F5: only while the session the key was admitted to is still the current one."""
    grant = await stage.keyed_grant(T1, OPENING)
    named = Target(OPENING.cid, grant.session_id)
    await stage.end_lease(T1)
    await stage.delete(named)
    await stage.granted(T2, OPENING)
    assert (await stage.status(T1, OPENING, digest=KEY)) is not None
    async with stage.unchanged():
        assert await stage.keyed(T3, named, instead_of=T1) == Word("not_found")


async def test_a_rerun_of_a_key_kept_for_ever_keeps_it_for_ever(stage: Stage) -> None:
    """F7: a key that was about to expire loses its expiry with a grant that keeps it for ever."""
    await stage.keyed_grant(T1)
    await stage.end_lease(T1)
    await stage.status(T1, digest=KEY)
    assert await stage.ttl_ms(stage.keys.idempotency(KEY)) > 0
    await stage.keyed_grant(T2, instead_of=T1, settings=FOREVER)
    assert await stage.ttl_ms(stage.keys.idempotency(KEY)) == -1


async def test_keys_are_told_apart(stage: Stage) -> None:
    """F1: another key is another admission, whatever the request."""
    await stage.keyed_grant(T1, OPENING, exclusive=False)
    await stage.keyed_grant(T2, OPENING, exclusive=False, digest=32 * "e")


@pytest.mark.parametrize("named", [True, False])
async def test_what_is_refused_leaves_the_key_free(stage: Stage, named: bool) -> None:
    """F6: a key whose request was refused at admission names nothing."""
    target = Target(OPENING.cid, f"ses_{OPENING.cid}_1_{16 * 'b'}") if named else OPENING
    await stage.keyed(T1, target, expected="" if named else "another")
    assert await stage.snapshot() == {}
