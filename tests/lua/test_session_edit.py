"""session_edit: messages and notes without a turn."""

from __future__ import annotations

from coordinator.identity import Target
from coordinator.outcomes import Busy, Word
from tests.lua.stage import CHOSEN, OPENING, T1, T2, T3, Stage


async def test_messages_are_added_to_the_transcript(stage: Stage) -> None:
    """I1, J4: behind those that are there, as opaque bytes; the next turn finds them."""
    await stage.used(messages=[b"m1"])
    assert await stage.edit(b"m2\x00", b"[]") == 3
    assert (await stage.granted(T2)).history == [b"m1", b"m2\x00", b"[]"]


async def test_notes_replace_those_before(stage: Stage) -> None:
    """I1: without notes the old ones stay, and without messages the transcript does."""
    await stage.used(messages=[b"m1"])
    assert await stage.edit(notes=b"n1") == 1
    assert await stage.edit(b"m2", token="e2") == 2
    assert (await stage.hash(stage.keys.conversation(CHOSEN.cid)))["notes"] == "n1"
    assert await stage.edit(token="e3", notes=b"n2") == 2
    assert (await stage.hash(stage.keys.conversation(CHOSEN.cid)))["notes"] == "n2"
    assert await stage.transcript() == [b"m1", b"m2"]


async def test_a_repeated_edit_adds_nothing(stage: Stage) -> None:
    """J2: the same token again is answered as the first time."""
    await stage.used()
    await stage.edit(b"m1", notes=b"n1")
    async with stage.unchanged():
        assert await stage.edit(b"m1", notes=b"n1") == 1


async def test_messages_do_not_get_into_a_running_turn(stage: Stage) -> None:
    """G1, G4: while one runs it is busy, notes are not; a dead one is in nobody's way."""
    await stage.granted(T1, by="r2")
    async with stage.unchanged():
        outcome = await stage.edit(b"m1")
    assert isinstance(outcome, Busy)
    assert outcome.holder == "r2"
    assert 0 < outcome.left_ms <= stage.settings.lease_ms
    assert await stage.edit(notes=b"n1") == 0
    await stage.end_lease(T1)
    assert await stage.edit(b"m1", token="e2") == 1


async def test_a_session_that_is_not_current_is_not_found(stage: Stage) -> None:
    """B1, E2: unknown, or retired: nothing is revived."""
    assert await stage.edit(b"m1") == Word("not_found")
    assert await stage.snapshot() == {}
    first = await stage.used(OPENING)
    retired = Target(OPENING.cid, first.session_id)
    await stage.delete(retired)
    await stage.used(OPENING, turn=T2)
    async with stage.unchanged():
        assert await stage.edit(b"m1", target=retired, notes=b"n") == Word("not_found")


async def test_notes_go_with_their_session(stage: Stage) -> None:
    """E4: neither the tombstone nor the next generation has them."""
    first = await stage.used(OPENING)
    named = Target(OPENING.cid, first.session_id)
    await stage.edit(b"m1", target=named, notes=b"secret")
    await stage.delete(named)
    assert "secret" not in repr(await stage.snapshot())
    await stage.granted(T3, OPENING)
    assert "notes" not in await stage.hash(stage.keys.conversation(OPENING.cid))
