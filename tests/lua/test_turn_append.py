"""turn_append: events reach the store before the client, once each and in order."""

from __future__ import annotations

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Ended, Word
from tests.lua.stage import KEY, OPENING, T1, T2, Stage


async def test_events_are_numbered_from_one(stage: Stage) -> None:
    """H2, J4: opaque bytes, in order; the entry's id is the event's number."""
    grant = await stage.granted()
    assert await stage.append(grant.fence, [b"a\x00\xff", b""]) == 2
    assert await stage.append(grant.fence, [b"[]"], first=3) == 3
    assert await stage.log() == [b"a\x00\xff", b"", b"[]"]
    assert [entry for entry, _ in await stage.entries()] == [b"1-0", b"2-0", b"3-0"]
    assert (await stage.hash(stage.keys.turn(T1)))["events"] == "3"


async def test_a_repeated_append_adds_nothing(stage: Stage) -> None:
    """J2, H2: a lost reply and the same events again, wholly or in part new, lose and repeat none."""
    grant = await stage.granted()
    await stage.append(grant.fence, [b"1", b"2"])
    async with stage.unchanged(slack_ms=1_000):
        assert await stage.append(grant.fence, [b"1", b"2"]) == 2
        assert await stage.append(grant.fence, [b"1"]) == 2
    assert await stage.append(grant.fence, [b"2", b"3"], first=2) == 3
    assert await stage.log() == [b"1", b"2", b"3"]


async def test_a_gap_is_refused(stage: Stage) -> None:
    """H6: events of which earlier ones are missing are not written: a reader would skip without noticing."""
    grant = await stage.granted()
    await stage.append(grant.fence, [b"1"])
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"3"], first=3) == Word("gap")


async def test_an_append_is_a_renewal(stage: Stage) -> None:
    """G5: a turn that writes is alive; the log is kept for as long as its turn may run and be read."""
    grant = await stage.granted()
    await stage.client.zincrby(stage.keys.running, -20_000, T1)
    await stage.append(grant.fence, [b"1"])
    assert (await stage.lease_of(T1) or 0) > stage.settings.lease_ms - 1_000
    kept_ms = stage.settings.turn_limit_ms + max(stage.settings.result_ttl_ms, stage.settings.response_ttl_ms)
    assert kept_ms - 2_000 < await stage.ttl_ms(stage.keys.events(T1)) <= kept_ms


async def test_an_append_without_events_is_only_a_renewal(stage: Stage) -> None:
    """J3: no log appears."""
    grant = await stage.granted()
    assert await stage.append(grant.fence, []) == 0
    assert not await stage.client.exists(stage.keys.events(T1))


async def test_an_ended_lease_that_nobody_took_still_appends(stage: Stage) -> None:
    """G2: and it is renewed by it."""
    grant = await stage.granted()
    await stage.end_lease(T1)
    assert await stage.append(grant.fence, [b"1"]) == 1
    assert (await stage.lease_of(T1) or 0) > 0


@pytest.mark.parametrize("state", ["completed", "failed", "refused"])
async def test_an_ended_turn_appends_nothing(stage: Stage, state: str) -> None:
    """G8: it is told how it ended."""
    grant = await stage.keyed_grant()
    if state == "completed":
        await stage.finish(grant.fence, digest=KEY)
    else:
        await stage.abandon(grant.fence, state, digest=KEY)  # type: ignore[arg-type]  # the other two are its states
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"late"]) == Ended(state)  # type: ignore[arg-type]


async def test_a_cancelled_turn_appends_nothing(stage: Stage) -> None:
    """E3: a deletion fences its live turns, and says that they were cancelled, also once they were erased."""
    grant = await stage.granted()
    await stage.delete(force=True)
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"late"]) == Word("cancelled")
    assert await stage.erase(Target("x" + "0" * 24), T1) == 0
    await stage.client.unlink(stage.keys.turn(T1))
    assert await stage.append(grant.fence, [b"late"]) == Word("cancelled")


async def test_another_fence_appends_nothing(stage: Stage) -> None:
    """G2: every write names its fence."""
    grant = await stage.granted()
    async with stage.unchanged():
        assert await stage.append(grant.fence - 1, [b"late"]) == Word("lost")
        assert await stage.append(grant.fence + 1, [b"late"]) == Word("lost")


async def test_a_turn_whose_place_was_taken_appends_nothing(stage: Stage) -> None:
    """G2: refused inside the script that would write, whatever the fence says."""
    grant = await stage.granted()
    await stage.end_lease(T1)
    await stage.granted(T2)
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"late"]) == Word("lost")


async def test_a_turn_of_an_earlier_session_appends_nothing(stage: Stage) -> None:
    """E2: the session must be the conversation's current one, even where the lease is still there."""
    grant = await stage.granted(T1, OPENING)
    await stage.client.hset(stage.keys.conversation(OPENING.cid), "session", "another")
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"late"], target=OPENING) == Word("lost")


async def test_a_record_without_its_session_appends_nothing(stage: Stage) -> None:
    """J3: no session on either side is not the same session."""
    grant = await stage.granted()
    await stage.client.hdel(stage.keys.turn(T1), "session")
    await stage.client.unlink(*await stage.client.keys("*conversation*"))
    async with stage.unchanged():
        assert await stage.append(grant.fence, [b"late"]) == Word("lost")


async def test_whoever_follows_the_log_is_told(stage: Stage) -> None:
    """H2: that there is more, and in the end how the turn ended; a refused writer tells nobody anything."""
    async with stage.mailbox(channel=stage.keys.events(T1)) as received:
        grant = await stage.keyed_grant()
        await stage.append(grant.fence, [b"1"])
        assert await received() == ["more"]
        await stage.append(grant.fence - 1, [b"2"], first=2)
        await stage.finish(grant.fence, digest=KEY, kept="events", first=2)
        assert await received() == ["completed"]
        await stage.finish(grant.fence, digest=KEY, kept="events", first=2)
        assert await received() == []
