"""turn_abandon: ending without an answer, leaving the queue, taking back a grant."""

from __future__ import annotations

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Ended, Result, Word
from tests.lua.stage import CHOSEN, KEY, OPENING, T1, T2, T3, Stage

REFUSAL = Result(status=502, body=b'{"error": {}}\x00', headers=b"retry-after: 1")


async def test_a_refusal_frees_the_key(stage: Stage) -> None:
    """F6: what proves that nothing ran frees the key in the step that ends the turn."""
    grant = await stage.keyed_grant()
    assert await stage.abandon(grant.fence, "refused", digest=KEY) == "abandoned"
    assert not await stage.client.exists(stage.keys.idempotency(KEY), stage.keys.running, stage.keys.live(CHOSEN.cid))
    await stage.keyed_grant(T2, fingerprint="f2")


async def test_a_refusal_stays_readable_for_those_who_joined(stage: Stage) -> None:
    """F6: for 60 s they get that same refusal, byte for byte."""
    grant = await stage.keyed_grant()
    await stage.abandon(grant.fence, "refused", digest=KEY, refusal=REFUSAL)
    view = await stage.status(digest=KEY)
    assert view is not None
    assert (view.state, view.result) == ("refused", REFUSAL)
    assert 58_000 < await stage.ttl_ms(stage.keys.turn(T1)) <= stage.settings.refusal_ttl_ms == 60_000


@pytest.mark.parametrize("state", ["cancelled", "interrupted", "failed"])
async def test_an_end_after_dispatch_keeps_the_key(stage: Stage, state: str) -> None:
    """F6, F7: the key stays used, with its retention from here on, and the record says how it ended."""
    grant = await stage.keyed_grant()
    await stage.append(grant.fence, [b"e1"])
    outcome = await stage.abandon(grant.fence, state, digest=KEY)  # type: ignore[arg-type]  # all three are its states
    assert outcome == "abandoned"
    view = await stage.status(digest=KEY)
    assert view is not None
    assert (view.state, view.result) == (state, None)
    assert (await stage.hash(stage.keys.idempotency(KEY)))["state"] == state
    assert 0 < await stage.ttl_ms(stage.keys.idempotency(KEY)) <= stage.settings.key_ttl_ms
    for key in (stage.keys.turn(T1), stage.keys.events(T1)):
        assert 0 < await stage.ttl_ms(key) <= stage.settings.result_ttl_ms
    assert not await stage.client.exists(stage.keys.running, stage.keys.live(CHOSEN.cid))


async def test_a_repeated_abandon_is_abandoned(stage: Stage) -> None:
    """J2: the same answer, and the key that was taken meanwhile is left alone."""
    grant = await stage.keyed_grant()
    await stage.abandon(grant.fence, "refused", digest=KEY)
    await stage.keyed_grant(T2)
    async with stage.unchanged():
        assert await stage.abandon(grant.fence, "refused", digest=KEY) == "abandoned"


async def test_nothing_of_an_abandoned_turn_is_in_the_history(stage: Stage) -> None:
    """H4: no half turn: transcript and count are as before."""
    await stage.used(messages=[b"m1"])
    grant = await stage.granted(T2)
    await stage.abandon(grant.fence, "cancelled", turn=T2)
    assert await stage.transcript() == [b"m1"]
    assert (await stage.hash(stage.keys.conversation(CHOSEN.cid)))["turns"] == "1"


async def test_the_next_waiter_is_woken(stage: Stage) -> None:
    """G11: a turn that ends in any way hands over at once."""
    grant = await stage.granted()
    await stage.begin(T2)
    await stage.begin(T3, by="r2")
    await stage.end_vouch(T2)
    async with stage.mailbox("r2") as received:
        await stage.abandon(grant.fence, "failed")
        assert await received() == [f"wake {T3}"]
    assert await stage.members(stage.keys.waiting) == [T3]


async def test_a_waiter_leaves_no_trace(stage: Stage) -> None:
    """G3: it is out of the queue, and the one behind it hears of it."""
    await stage.granted()
    await stage.begin(T2)
    await stage.begin(T3, by="r2")
    async with stage.mailbox("r2") as received:
        assert await stage.abandon(None, turn=T2) == "abandoned"
        assert await received() == [f"wake {T3}"]
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == [f"{T3}@r2"]
    assert await stage.members(stage.keys.waiting) == [T3]


async def test_only_its_own_place_is_given_up(stage: Stage) -> None:
    """G3: a waiter's place belongs to its replica; the holder and the others stay."""
    await stage.granted()
    await stage.begin(T2, by="r2")
    async with stage.unchanged():
        await stage.abandon(None, turn=T3, by="r2")
    await stage.abandon(None, turn=T2, by="r2")
    assert await stage.members(stage.keys.live(CHOSEN.cid)) == [T1]


async def test_a_grant_is_taken_back_without_its_fence(stage: Stage) -> None:
    """G13: a caller that was cut off before the reply takes back what it may have been granted, key and all."""
    await stage.keyed_grant()
    assert await stage.abandon(None, "refused", digest=KEY) == "abandoned"
    assert not await stage.client.exists(stage.keys.running, stage.keys.idempotency(KEY))
    assert await stage.begin(T1) == Ended("refused")


async def test_an_unknown_turn_leaves_nothing(stage: Stage) -> None:
    """J3: nothing to end is answered like an end, and no key appears."""
    assert await stage.abandon(None, "refused", digest=KEY) == "abandoned"
    assert await stage.abandon(1, "failed", digest=KEY) == "abandoned"
    assert await stage.snapshot() == {}


async def test_another_fence_ends_nothing(stage: Stage) -> None:
    """G2: every write names its fence."""
    grant = await stage.keyed_grant()
    async with stage.unchanged():
        assert await stage.abandon(grant.fence - 1, "failed", digest=KEY) == Word("lost")
        assert await stage.abandon(grant.fence + 1, "refused", digest=KEY) == Word("lost")


async def test_a_turn_whose_place_was_taken_ends_nothing(stage: Stage) -> None:
    """G2: the late one frees neither the lease nor the key."""
    grant = await stage.keyed_grant()
    await stage.end_lease(T1)
    await stage.granted(T2)
    async with stage.unchanged():
        assert await stage.abandon(grant.fence, "refused", digest=KEY) == Word("lost")


async def test_a_turn_that_ended_otherwise_is_told_so(stage: Stage) -> None:
    """G8: a committed turn is not abandoned by a late stop or refusal."""
    grant = await stage.keyed_grant()
    await stage.finish(grant.fence, digest=KEY)
    async with stage.unchanged():
        assert await stage.abandon(grant.fence, "cancelled", digest=KEY) == Ended("completed")
        assert await stage.abandon(None, "refused", digest=KEY) == Ended("completed")


async def test_a_turn_asked_to_stop_ends_as_cancelled(stage: Stage) -> None:
    """E3, G8: whatever its holder calls it, and the holder is told; sent again, the same."""
    grant = await stage.keyed_grant(T1, OPENING)
    await stage.delete(Target(OPENING.cid, grant.session_id), force=True)
    for _ in range(2):
        outcome = await stage.abandon(grant.fence, "failed", target=OPENING, digest=KEY)
        assert outcome == Ended("cancelled")
    assert (await stage.hash(stage.keys.turn(T1)))["state"] == "cancelled"
    assert not await stage.client.exists(stage.keys.cancelling)


async def test_a_turn_asked_to_stop_that_stopped_is_abandoned(stage: Stage) -> None:
    """G7: ending as cancelled is what was asked for."""
    grant = await stage.granted()
    await stage.delete(force=True)
    assert await stage.abandon(grant.fence, "cancelled") == "abandoned"


async def test_a_turn_asked_to_stop_before_anything_ran_still_frees_its_key(stage: Stage) -> None:
    """F6: that nothing ran stays true, whoever asked it to stop."""
    grant = await stage.keyed_grant()
    await stage.delete(force=True)
    assert await stage.abandon(grant.fence, "refused", digest=KEY) == "abandoned"
    assert not await stage.client.exists(stage.keys.idempotency(KEY), stage.keys.cancelling)


async def test_an_erased_turn_takes_its_mark_along(stage: Stage) -> None:
    """E2: a turn that was erased before its holder noticed leaves nothing to be cancelled."""
    grant = await stage.granted()
    await stage.delete(force=True)
    await stage.erase(CHOSEN, T1)
    assert await stage.abandon(grant.fence, "cancelled") == "abandoned"
    assert not await stage.client.exists(stage.keys.cancelling, stage.keys.turn(T1))
