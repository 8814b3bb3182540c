"""session_open: a session without a turn."""

from __future__ import annotations

import pytest

from coordinator.identity import Target, parse_session_id
from coordinator.outcomes import Word
from tests.lua.declared import HOME, IDLE_MS, generation, moved_on, named, rest
from tests.lua.stage import CHOSEN, HOUR_MS, MINTED, OPENING, T1, T2, Stage, at_once


@pytest.mark.parametrize("target", [HOME, CHOSEN, MINTED], ids=["declared", "chosen", "minted"])
async def test_a_new_session_is_open_and_without_turns(stage: Stage, target: Target) -> None:
    """B1, C4: it is listed, has generation 1 and who keeps its history, and nobody runs in it."""
    before = await stage.now_ms()
    answer = await stage.open(target, history="client", source="telegram")
    assert isinstance(answer, tuple)
    session_id, new = answer
    assert new
    ours = parse_session_id(session_id)
    assert session_id == "chat-42" if target is CHOSEN else ours is not None and ours.cid == target.cid
    conversation = await stage.hash(stage.keys.conversation(target.cid))
    assert {name: conversation[name] for name in ("kind", "session", "generation", "history", "source", "turns")} == {
        "kind": target.kind,
        "session": session_id,
        "generation": "1",
        "history": "client",
        "source": "telegram",
        "turns": "0",
    }
    assert int(conversation["created_ms"]) >= before
    assert await stage.members(stage.keys.sessions) == [target.cid]
    assert not await stage.client.exists(stage.keys.running, stage.keys.live(target.cid), stage.keys.tombstones)


async def test_an_open_session_stays_as_it_is(stage: Stage) -> None:
    """C3, C4: opening it again, under whatever terms, tells its id and changes nothing."""
    grant = await stage.used(HOME, messages=[b"m"])
    async with stage.unchanged():
        assert await stage.open(HOME, token="o2", history="client", source="other") == (grant.session_id, False)
        assert await stage.open(named(HOME, grant.session_id), token="o3") == (grant.session_id, False)


async def test_a_repeated_opening_is_answered_as_the_first(stage: Stage) -> None:
    """J2: the same token is told that it is new, also while a turn uses it; another token is not."""
    first = await stage.open(HOME, token="o1")
    async with stage.unchanged():
        assert await stage.open(HOME, token="o1") == first
        assert await stage.open(HOME, token="o2") != first
    await stage.granted(T1, HOME)
    assert await stage.open(HOME, token="o1") == first


async def test_the_next_turn_finds_it(stage: Stage) -> None:
    """C4: by its key and by its id, with the history it was opened with."""
    answer = await stage.open(HOME, history="client")
    assert isinstance(answer, tuple)
    grant = await stage.granted(T1, HOME, history="store")
    assert (grant.session_id, grant.history_kept) == (answer[0], False)
    await stage.finish(grant.fence, target=HOME)
    assert (await stage.granted(T2, named(HOME, answer[0]))).session_id == answer[0]


async def test_what_a_boundary_announced_is_what_opens(stage: Stage) -> None:
    """C6: the generation that a reset made room for, by its id or by the key, once."""
    await stage.used(HOME)
    announced = await moved_on(stage)
    async with stage.unchanged():
        assert await stage.open(named(HOME, f"ses_{HOME.cid}_2_{16 * '0'}")) == Word("not_found")
    assert await stage.open(named(HOME, announced.session_id)) == (announced.session_id, True)
    assert await stage.open(HOME, token="o2") == (announced.session_id, False)
    assert await generation(stage) == 2
    assert not await stage.client.exists(stage.keys.tombstones)


async def test_a_conversation_keeps_its_source_over_generations(stage: Stage) -> None:
    """C1: whoever opens the next generation, by its id and so without knowing the source, changes nothing about it."""
    await stage.used(HOME)
    await stage.client.hset(stage.keys.conversation(HOME.cid), "source", "telegram")
    announced = await moved_on(stage)
    await stage.open(named(HOME, announced.session_id), source="api_server")
    assert (await stage.hash(stage.keys.conversation(HOME.cid)))["source"] == "telegram"


async def test_a_retired_id_is_refused(stage: Stage) -> None:
    """B1: before and after its tombstone was pruned, and for ids of our pattern that never were."""
    await stage.used(CHOSEN)
    await stage.delete(CHOSEN)
    async with stage.unchanged():
        assert await stage.open(CHOSEN) == Word("not_found")
    await stage.prune(CHOSEN)
    async with stage.unchanged():
        assert await stage.open(CHOSEN) == Word("not_found")
        for target in (HOME, OPENING, MINTED):
            assert await stage.open(named(target, f"ses_{target.cid}_1_{16 * '0'}")) == Word("not_found")


async def test_opening_is_no_admission(stage: Stage) -> None:
    """C8: idle and daily boundaries are judged when a turn asks; the session is told as it is."""
    grant = await stage.used(HOME)
    await rest(stage, 2 * IDLE_MS)
    assert await stage.open(HOME) == (grant.session_id, False)


async def test_a_clock_that_stepped_back_changes_nothing(stage: Stage) -> None:
    """G9: times from the future are times like any other."""
    await stage.used(HOME)
    announced = await moved_on(stage)
    await stage.client.zadd(stage.keys.tombstones, {HOME.cid: await stage.now_ms() + HOUR_MS})
    assert await stage.open(HOME) == (announced.session_id, True)


async def test_of_openings_at_once_one_is_new(stage: Stage, store_url: str) -> None:
    """C4: twenty first ones get one session, and one of them opened it."""
    answers = await at_once(store_url, 20, lambda racer, number: racer.open(HOME, token=f"o{number}"))
    assert len({answer[0] for answer in answers if isinstance(answer, tuple)}) == 1
    assert [isinstance(answer, tuple) and answer[1] for answer in answers].count(True) == 1
    assert await stage.members(stage.keys.sessions) == [HOME.cid]
