"""prune, of declared conversations: they shrink to their counter and forget everything else."""

from __future__ import annotations

import pytest

from coordinator.outcomes import Word
from tests.lua.declared import HOME, end, generation, moved_on, named, recorded
from tests.lua.stage import HOUR_MS, T1, T2, T3, Stage

COUNTER = {"kind", "source", "session", "generation", "nonce", "fence", "ended_by"}


async def test_an_idle_conversation_moves_on_and_shrinks(stage: Stage) -> None:
    """E6, C6: retention is a boundary of the reason idle; what is left is a counter that lives for ever."""
    first = await stage.used(HOME, messages=[b"secret"])
    assert await stage.prune(HOME) == 1
    key = stage.keys.conversation(HOME.cid)
    counter = await stage.hash(key)
    assert set(counter) == COUNTER
    assert (counter["session"], counter["generation"], counter["ended_by"]) == ("", "2", "idle")
    assert (counter["kind"], counter["fence"]) == ("d", str(first.fence))
    assert counter["nonce"] != first.nonce
    assert await stage.ttl_ms(key) == -1
    assert set(await stage.client.keys()) == {key.encode(), stage.keys.turn(T1).encode()}


async def test_the_next_turn_goes_on_counting(stage: Stage) -> None:
    """C5, G2: a new session in the next generation, under a higher fence; the old id stays unknown."""
    first = await stage.used(HOME)
    await stage.prune(HOME)
    second = await stage.granted(T2, HOME)
    assert (second.generation, second.history) == (2, [])
    assert second.session_id != first.session_id
    assert second.fence > first.fence
    assert await stage.begin(T3, named(HOME, first.session_id)) == Word("not_found")
    assert await stage.members(stage.keys.sessions) == [HOME.cid]


@pytest.mark.parametrize("by", ["reset", "deletion", "end"])
async def test_a_retired_conversation_shrinks_without_moving(stage: Stage, by: str) -> None:
    """C5, E6: after its boundary its tombstone becomes the counter, of the generation that is due."""
    first = await stage.used(HOME)
    if by == "reset":
        announced = (await moved_on(stage)).session_id
    elif by == "deletion":
        await stage.delete(named(HOME, first.session_id))
        announced = ""
    else:
        await recorded(stage, "p1", "chat-42")
        await end(stage, "p1")
        announced = ""
    before = await stage.hash(stage.keys.conversation(HOME.cid))
    assert await stage.prune(HOME) == 1
    after = await stage.hash(stage.keys.conversation(HOME.cid))
    assert set(after) == COUNTER
    assert after == {name: before[name] for name in COUNTER}
    assert not await stage.client.exists(stage.keys.tombstones)
    assert (await stage.granted(T2, HOME)).session_id == announced or by != "reset"


async def test_generations_survive_any_number_of_prunings(stage: Stage) -> None:
    """C5: used and pruned five times, the generation grows by one each time and no id comes twice."""
    seen = set()
    for number in range(5):
        grant = await stage.used(HOME, turn=f"{number:032x}")
        assert grant.generation == number + 1
        seen.add(grant.session_id)
        assert await stage.prune(HOME) == 1
        async with stage.unchanged():
            assert await stage.prune(HOME) == 1  # told again, done once
    assert len(seen) == 5


async def test_a_conversation_without_a_boundary_leaves_nothing(stage: Stage) -> None:
    """C5, E6: a host only recorded ids in it: it is dropped, and what comes later has another nonce."""
    first = await recorded(stage, "p1", "chat-42")
    assert await stage.prune(HOME) == 1
    assert await generation(stage) == 0
    second = await recorded(stage, "p2", "chat-42")
    assert (second.generation, second.nonce != first.nonce) == (1, True)
    assert await end(stage, "p1") == (False, [])


async def test_a_live_turn_or_a_waiter_keeps_it(stage: Stage) -> None:
    """E6, C8: nothing of a conversation in use moves, whatever the horizon."""
    grant = await stage.granted(T1, HOME)
    await stage.begin(T2, HOME)
    async with stage.unchanged():
        assert await stage.prune(HOME) == 0
    await stage.finish(grant.fence, target=HOME)
    async with stage.unchanged():
        assert await stage.prune(HOME) == 0
    assert (await stage.granted(T2, HOME)).generation == 1


async def test_a_dead_turn_does_not_commit_into_the_next_generation(stage: Stage) -> None:
    """C5, G2: its lease goes with the generation, and what it says later is refused."""
    dead = await stage.granted(T1, HOME)
    await stage.end_lease(T1)
    assert await stage.prune(HOME) == 1
    newer = await stage.granted(T2, HOME)
    async with stage.unchanged():
        assert await stage.finish(dead.fence, target=HOME, messages=[b"late"]) == Word("lost")
    assert (newer.generation, await stage.transcript(HOME)) == (2, [])


async def test_a_repeated_step_moves_on_once(stage: Stage) -> None:
    """J2, C5: whichever reply was lost; and a turn that came in between lives."""
    await stage.used(HOME)
    assert [await stage.prune(HOME) for _ in range(3)] == [1, 1, 1]
    assert await generation(stage) == 2
    await stage.granted(T2, HOME)
    assert await stage.prune(HOME) == 0
    assert await generation(stage) == 2


async def test_a_clock_that_stepped_back_drops_nothing(stage: Stage) -> None:
    """G9: activity that lies in the future is not past any horizon."""
    await stage.used(HOME)
    await stage.client.zadd(stage.keys.sessions, {HOME.cid: await stage.now_ms() + HOUR_MS})
    async with stage.unchanged():
        assert await stage.prune(HOME) == 0
