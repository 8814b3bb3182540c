"""session_end: the first end of a host's session id wins; a boundary moves its conversation on, once."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.identity import record_digest
from coordinator.outcomes import Busy, Word
from tests.lua.declared import (
    ELSEWHERE,
    HARMLESS,
    HOME,
    IDLE_MS,
    REASONS,
    busy,
    end,
    generation,
    host_id,
    moved_on,
    named,
    only_records_change,
    recorded,
    rest,
)
from tests.lua.stage import HOUR_MS, T1, T2, T3, Stage, at_once

ENDED: tuple[bool, list[str]] = (True, [])
UNMOVED: tuple[bool, list[str]] = (False, [])


@pytest.mark.parametrize("reason", [*REASONS, "deleted"])
async def test_a_boundary_moves_the_conversation_on(stage: Stage, reason: str) -> None:
    """C6: each of the six reasons, and deletion, retires the session and opens the next generation in one step."""
    grant = await stage.used(HOME, messages=[b"secret"])
    await recorded(stage, "p1", "chat-42")
    assert await end(stage, "p1", reason) == ENDED
    conversation = await stage.hash(stage.keys.conversation(HOME.cid))
    assert (conversation["session"], conversation["generation"], conversation["ended_by"]) == ("", "2", reason)
    assert conversation["nonce"] != grant.nonce
    assert not await stage.client.exists(stage.keys.messages(HOME.cid), stage.keys.sessions)
    assert (await stage.granted(T2, HOME)).generation == 2


@pytest.mark.parametrize("reason", HARMLESS)
async def test_any_other_end_moves_nothing(stage: Stage, reason: str) -> None:
    """C6: compression, agent_close, branched and whatever else a host says."""
    fence = await busy(stage, HOME, T1)
    await recorded(stage, "p1", "chat-42")
    async with only_records_change(stage):
        assert await end(stage, "p1", reason) == UNMOVED
    assert (await recorded(stage, "p1")).ended == reason
    assert await stage.finish(fence, target=HOME) == "finished"


async def test_the_first_end_wins(stage: Stage) -> None:
    """C6: ending again, with any reason, changes nothing; neither does it after a boundary."""
    await recorded(stage, "p1", "chat-42")
    await recorded(stage, "p2", "chat-42")
    await end(stage, "p1", "compression")
    await end(stage, "p2", "session_reset")
    async with stage.unchanged():
        for session_id in ("p1", "p2"):
            for reason in (*REASONS, *HARMLESS, "deleted"):
                assert await end(stage, session_id, reason, token="e2") == Word("kept")
    assert await generation(stage) == 2


async def test_one_boundary_of_a_generation_moves_it(stage: Stage) -> None:
    """C6: four ids of one generation end by four boundaries: the generation moves on by one."""
    for number in range(4):
        await recorded(stage, f"p{number}", "chat-42")
    answers = [await end(stage, f"p{number}", REASONS[number], token=f"e{number}") for number in range(4)]
    assert answers == [ENDED, UNMOVED, UNMOVED, UNMOVED]
    assert await generation(stage) == 2


@pytest.mark.parametrize("by", ["reset", "deletion", "pruned", "everything lost"])
async def test_an_end_counts_only_while_its_generation_is_current(stage: Stage, by: str) -> None:
    """C6, C5: whatever moved the conversation on before, a late end of the old generation spares the new one."""
    grant = await stage.used(HOME)
    await recorded(stage, "p1", "chat-42")
    kept = await stage.client.dump(stage.keys.record(record_digest("p1")))
    if by == "reset":
        await moved_on(stage)
    elif by == "deletion":
        await stage.delete(named(HOME, grant.session_id))
    elif by == "pruned":
        await stage.prune(HOME)
    else:
        await stage.client.flushall()
        assert kept is not None
        await stage.client.restore(stage.keys.record(record_digest("p1")), 0, kept)
    newer = await stage.granted(T2, HOME)
    async with only_records_change(stage):
        assert await end(stage, "p1") == UNMOVED
    assert await stage.finish(newer.fence, turn=T2, target=HOME) == "finished"


async def test_an_accident_gives_way_when_asked(stage: Stage) -> None:
    """C6: a promotion makes a boundary of an id that was only closed, once; of one that was ended it makes none."""
    for number, accident in enumerate(("agent_close", "ws_orphan_reap", "")):
        await recorded(stage, f"p{number}", "chat-42")
        if accident:
            await end(stage, f"p{number}", accident, token="e1")
        assert await end(stage, f"p{number}", token="e2", over_accidents=True) == ENDED
        assert await generation(stage) == number + 2
        async with stage.unchanged():
            assert await end(stage, f"p{number}", token="e3", over_accidents=True) == Word("kept")
    await recorded(stage, "p9", "chat-42")
    await end(stage, "p9", "compression", token="e1")
    async with stage.unchanged():
        assert await end(stage, "p9", token="e2", over_accidents=True) == Word("kept")


async def test_an_unbound_id_moves_nothing(stage: Stage) -> None:
    """C6: it has no conversation; only that it ended is written down."""
    await stage.used(HOME)
    await recorded(stage, "p1")
    async with only_records_change(stage):
        assert await end(stage, "p1", cid="") == UNMOVED
    assert (await recorded(stage, "p1")).ended == "session_reset"


@pytest.mark.parametrize("relation", ["branch", "delegate", "tool", "review"])
async def test_a_fork_moves_nothing(stage: Stage, relation: Any) -> None:
    """C6, D2: it is not its parent's conversation, even if its record names one."""
    await recorded(stage, "p1", "chat-42")
    await recorded(stage, "f1", "chat-42", parent="p1", relation=relation)
    assert await end(stage, "f1", cid="") == UNMOVED
    await recorded(stage, "p2", "chat-42")
    await stage.client.hset(stage.keys.record(record_digest("p2")), "relation", relation)
    assert await end(stage, "p2") == UNMOVED
    assert await generation(stage) == 1


async def test_a_compressed_conversation_is_moved_by_its_child(stage: Stage) -> None:
    """C6: the child is in the parent's generation, and its boundary is that generation's."""
    await recorded(stage, "p1", "chat-42")
    await end(stage, "p1", "compression")
    await recorded(stage, "c1", parent="p1", relation="compression")
    assert await end(stage, "c1", token="e2") == ENDED
    assert await generation(stage) == 2


async def test_live_turns_and_waiters_leave(stage: Stage) -> None:
    """C7: as with any reset, live turns are told back, fenced and asked to stop; waiters are woken."""
    fence = await busy(stage, HOME, T1, waiting=[T2])
    await recorded(stage, "p1", "chat-42")
    async with stage.mailbox("r2") as received:
        assert await end(stage, "p1") == (True, [T1])
        assert await received() == [f"wake {T2}"]
    assert await stage.finish(fence, target=HOME) == Word("cancelled")
    assert not await stage.client.exists(stage.keys.queue(HOME.cid), stage.keys.waiting, stage.keys.running)


async def test_without_force_a_busy_conversation_is_left_alone(stage: Stage) -> None:
    """E3: a live turn, or a waiter, refuses the deletion of an id that is bound to it, not a harmless end."""
    fence = await busy(stage, HOME, T1, waiting=[T2])
    for session_id in ("p1", "p2", "p3"):
        await recorded(stage, session_id, "chat-42")
    async with stage.unchanged():
        answer = await end(stage, "p1", "deleted", force=False)
    assert isinstance(answer, Busy)
    assert answer.holder == "r1"
    assert 0 < answer.left_ms <= stage.settings.lease_ms
    assert await end(stage, "p2", "agent_close", force=False) == UNMOVED
    await stage.finish(fence, target=HOME)
    async with stage.unchanged():
        assert await end(stage, "p1", "deleted", force=False) == Busy("r1", 0)
    await stage.end_vouch(T2)
    assert await end(stage, "p1", "deleted", force=False) == ENDED


async def test_an_id_bound_meanwhile_is_asked_about_again(stage: Stage) -> None:
    """C3: the conversation is read before the step; what changed since is told, and nothing is done."""
    await recorded(stage, "p1")
    await recorded(stage, "p1", "chat-42")
    async with stage.unchanged():
        assert await end(stage, "p1", cid="") == HOME.cid
        assert await end(stage, "p1", cid=ELSEWHERE.cid) == HOME.cid
    assert await end(stage, "p1") == ENDED


async def test_an_unknown_id_is_not_written_down(stage: Stage) -> None:
    """J3, E2: an end is update-only; a late one of a deleted id revives nothing."""
    assert await end(stage, "p1") == Word("unknown")
    assert await stage.snapshot() == {}
    await recorded(stage, "p1", "chat-42")
    await stage.delete(host_id("p1"))
    async with stage.unchanged():
        assert await end(stage, "p1") == Word("unknown")


async def test_a_repeated_end_is_answered_as_the_first(stage: Stage) -> None:
    """J2: the same token again moves nothing, also when the next generation is in use."""
    await recorded(stage, "p1", "chat-42")
    await recorded(stage, "p2", "chat-42")
    assert await end(stage, "p1", token="e1") == ENDED
    assert await end(stage, "p2", "agent_close", token="e2") == UNMOVED
    grant = await stage.granted(T1, HOME)
    async with stage.unchanged():
        assert await end(stage, "p1", token="e1") == ENDED
        assert await end(stage, "p2", "agent_close", token="e2") == UNMOVED
    assert await stage.finish(grant.fence, target=HOME) == "finished"


async def test_a_clock_that_stepped_back_changes_nothing(stage: Stage) -> None:
    """C5: an hour's step between record and end leaves the one boundary what it is."""
    await stage.used(HOME)
    await recorded(stage, "p1", "chat-42")
    await rest(stage, -HOUR_MS)
    await stage.client.zadd(stage.keys.sessions, {HOME.cid: await stage.now_ms() + HOUR_MS})
    assert await end(stage, "p1") == ENDED
    assert await generation(stage) == 2


async def test_of_ends_at_once_one_moves_the_conversation(stage: Stage, store_url: str) -> None:
    """C6: twenty ids of a generation end at the same moment, some of them twice: one bump."""
    for number in range(10):
        await recorded(stage, f"p{number}", "chat-42")
    answers = await at_once(
        store_url, 20, lambda racer, number: end(racer, f"p{number % 10}", REASONS[number % 6], token=f"e{number}")
    )
    assert answers.count(ENDED) == 1
    assert answers.count(UNMOVED) == 9
    assert answers.count(Word("kept")) == 10
    assert await generation(stage) == 2


async def test_a_resting_conversation_is_not_touched_by_a_harmless_end(stage: Stage) -> None:
    """C8: an end is no admission: neither is a boundary judged, nor is it a use."""
    await stage.used(HOME)
    await recorded(stage, "p1", "chat-42")
    await rest(stage, 2 * IDLE_MS)
    async with only_records_change(stage):
        await end(stage, "p1", "agent_close")
    assert await stage.open(HOME) != Word("not_found")
    assert await stage.begin(T3, HOME, settings={"idle_ms": IDLE_MS}) is not None
    assert await generation(stage) == 2
