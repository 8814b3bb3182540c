"""turn_hide: an answer that its client deleted."""

from __future__ import annotations

from coordinator.outcomes import Seen
from tests.lua.stage import ANSWER, CHOSEN, KEY, T1, T2, Stage


async def test_an_answer_without_a_key_goes(stage: Stage) -> None:
    """I1: record and events."""
    grant = await stage.granted()
    await stage.finish(grant.fence, kept="events", events=[b"e"])
    assert await stage.hide()
    assert not await stage.client.exists(stage.keys.turn(T1), stage.keys.events(T1))
    assert await stage.status() is None


async def test_an_answer_with_a_key_is_kept_for_its_retry(stage: Stage) -> None:
    """I1, F1: it is out of sight, what was asked is gone, and the key still gets the answer, event for event."""
    grant = await stage.keyed_grant(about=b"asked")
    await stage.finish(grant.fence, digest=KEY, kept="events", events=[b"e"])
    assert await stage.hide()
    assert await stage.keyed(T2) == Seen(T1, CHOSEN.cid, "chat-42", "completed")
    view = await stage.status(digest=KEY)
    assert view is not None
    assert (view.hidden, view.result, view.about) == (True, ANSWER, b"")
    assert await stage.log() == [b"e"]


async def test_what_has_not_ended_is_not_hidden(stage: Stage) -> None:
    """I1: it has to be cancelled first."""
    await stage.granted(T1)
    await stage.accepted(T2)
    async with stage.unchanged():
        assert not await stage.hide(T1)
        assert not await stage.hide(T2)


async def test_hiding_again_changes_nothing(stage: Stage) -> None:
    """J2, J3: nor does hiding what is not there."""
    assert await stage.hide()
    assert await stage.snapshot() == {}
    grant = await stage.keyed_grant()
    await stage.finish(grant.fence, digest=KEY)
    await stage.hide()
    async with stage.unchanged():
        assert await stage.hide()
