"""session_fork: a new session that starts with a copy of another's transcript."""

from __future__ import annotations

import pytest

from coordinator.identity import Target, parse_session_id, session_scope
from coordinator.outcomes import Word
from tests.lua.declared import FORK, HOME, forked, generation, moved_on, named
from tests.lua.stage import CHOSEN, MINTED, OPENING, T1, T2, T3, TENANT, Stage


@pytest.mark.parametrize("origin", [HOME, CHOSEN, MINTED, OPENING], ids=["declared", "chosen", "minted", "implicit"])
async def test_a_fork_starts_with_the_transcript(stage: Stage, origin: Target) -> None:
    """D2, I2: a minted session with a copy, the terms of its origin, and its origin's id; the origin stays as it is."""
    grant = await stage.used(origin, messages=[b"one", b"\x00\xff"])
    before = await stage.hash(stage.keys.conversation(origin.cid))
    answer = await forked(stage, named(origin, grant.session_id))
    assert isinstance(answer, tuple)
    session_id, count = answer
    ours = parse_session_id(session_id)
    assert ours is not None
    assert (ours.cid, ours.generation, count) == (FORK.cid, 1, 2)
    assert await stage.transcript(FORK) == [b"one", b"\x00\xff"]
    conversation = await stage.hash(stage.keys.conversation(FORK.cid))
    assert {name: conversation[name] for name in ("kind", "session", "parent", "turns", "forked")} == {
        "kind": "m",
        "session": session_id,
        "parent": grant.session_id,
        "turns": "0",
        "forked": "2",
    }
    assert [conversation[name] for name in ("history", "source")] == [before[name] for name in ("history", "source")]
    assert sorted(await stage.members(stage.keys.sessions)) == sorted([origin.cid, FORK.cid])
    assert await stage.hash(stage.keys.conversation(origin.cid)) == before


async def test_the_two_go_their_own_ways(stage: Stage) -> None:
    """D2, C6: a turn, a reset or a deletion of one is not seen in the other; neither bumps the other."""
    grant = await stage.used(HOME, messages=[b"one"])
    answer = await forked(stage, named(HOME, grant.session_id))
    assert isinstance(answer, tuple)
    await stage.used(FORK, turn=T2, messages=[b"fork"])
    await stage.used(HOME, turn=T3, messages=[b"origin"])
    assert await stage.transcript(FORK) == [b"one", b"fork"]
    assert await stage.transcript(HOME) == [b"one", b"origin"]
    await moved_on(stage)
    assert await stage.transcript(FORK) == [b"one", b"fork"]
    assert await stage.delete(named(FORK, answer[0])) == []
    assert await generation(stage) == 2


async def test_a_fork_has_a_scope_of_its_own(stage: Stage) -> None:
    """D2: not its origin's, although that is declared."""
    grant = await stage.used(HOME)
    answer = await forked(stage, named(HOME, grant.session_id))
    assert isinstance(answer, tuple)
    ours = parse_session_id(answer[0])
    assert ours is not None
    own = session_scope(TENANT, ours.cid, answer[0], 1, ours.nonce)
    theirs = session_scope(TENANT, HOME.cid, grant.session_id, 1, grant.nonce)
    assert own.startswith("gws_")
    assert theirs.startswith("gwk_")
    assert own[4:] != theirs[4:]


async def test_a_running_turn_is_not_forked(stage: Stage) -> None:
    """G4: the copy holds what was committed, and the turn commits to its own session alone."""
    await stage.used(CHOSEN, messages=[b"one"])
    running = await stage.granted(T2)
    await forked(stage, CHOSEN)
    assert await stage.finish(running.fence, turn=T2, messages=[b"two"]) == "finished"
    assert await stage.transcript(FORK) == [b"one"]
    assert not await stage.client.exists(stage.keys.live(FORK.cid), stage.keys.running)


async def test_only_what_is_current_can_be_forked(stage: Stage) -> None:
    """B1: an unknown, retired or deleted session is not found, and nothing is written."""
    assert await forked(stage, CHOSEN) == Word("not_found")
    assert await stage.snapshot() == {}
    grant = await stage.used(HOME, messages=[b"secret"])
    announced = await moved_on(stage)
    await stage.used(CHOSEN, turn=T2)
    await stage.delete(CHOSEN)
    async with stage.unchanged():
        for gone in (named(HOME, grant.session_id), named(HOME, announced.session_id), CHOSEN, HOME):
            assert await forked(stage, gone) == Word("not_found")


async def test_a_repeated_fork_is_answered_as_the_first(stage: Stage) -> None:
    """J2: the same new conversation again is told its id and first count, whatever was said in either since."""
    grant = await stage.used(HOME, messages=[b"one"])
    origin = named(HOME, grant.session_id)
    first = await forked(stage, origin)
    await stage.used(HOME, turn=T2, messages=[b"two"])
    await stage.used(FORK, turn=T3, messages=[b"fork"])
    async with stage.unchanged():
        assert await forked(stage, origin) == first
    await moved_on(stage)
    async with stage.unchanged():
        assert await forked(stage, origin) == first


async def test_an_empty_session_has_an_empty_fork(stage: Stage) -> None:
    """B2: also one whose history its client keeps."""
    grant = await stage.granted(T1, OPENING, exclusive=False, history="client")
    answer = await forked(stage, named(OPENING, grant.session_id))
    assert isinstance(answer, tuple)
    assert answer[1] == 0
    assert not await stage.client.exists(stage.keys.messages(FORK.cid))
    assert not (await stage.granted(T2, FORK)).history_kept
