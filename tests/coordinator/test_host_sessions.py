"""A host's own session ids: bound to a generation, ended once, and a scope that follows the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator import Declared, Explicit, SessionBusy, SessionNotFound, StaleGeneration, TurnCancelled
from tests.coordinator.hosting import HARMLESS, HOME, HOUR_MS, REASONS, TENANT, Host
from tests.support.waiting import until

Start = Callable[..., Awaitable[Host]]
SOURCE, KEY = HOME.source, HOME.key


async def bound(host: Host, *session_ids: str, **options: Any) -> None:
    """Records ids, bound to `HOME`."""
    for session_id in session_ids:
        await host.coordinator.session_record(TENANT, session_id, source=SOURCE, key=KEY, **options)


async def generation(host: Host) -> int:
    """The generation that the next turn is in."""
    return (await host.say()).generation


async def test_what_is_recorded_is_told_by_every_replica(start_host: Start) -> None:
    """D3, C1: source, key and fork verdict in one read, the same before and after the conversation exists."""
    here, there = await start_host(), await start_host()
    assert await there.coordinator.host_session(TENANT, "p1") is None
    first = await here.coordinator.session_record(TENANT, "p1", source=SOURCE, key=KEY)
    assert await there.coordinator.host_session(TENANT, "p1") == first
    assert (first.source, first.key, first.generation, first.is_fork, first.ended) == (SOURCE, KEY, 1, False, None)
    await there.say()
    assert await here.coordinator.session_record(TENANT, "p1", source=SOURCE, key=KEY) == first
    assert await there.coordinator.host_session("beta", "p1") is None


@pytest.mark.parametrize("reason", REASONS)
async def test_a_boundary_moves_the_conversation_on_once(start_host: Start, reason: str) -> None:
    """C6: each of the six reasons, on any replica; ending again with another changes nothing."""
    here, there = await start_host(), await start_host()
    first = await here.say()
    await bound(here, "p1")
    assert await there.coordinator.session_end(TENANT, "p1", reason)
    for again in (*REASONS, *HARMLESS):
        assert not await here.coordinator.session_end(TENANT, "p1", again)
    host = await here.coordinator.host_session(TENANT, "p1")
    assert host is not None
    assert host.ended == reason
    second = await here.say()
    assert (second.generation, second.session_id != first.session_id) == (2, True)


@pytest.mark.parametrize("reason", HARMLESS)
async def test_any_other_end_moves_nothing(host: Host, reason: str) -> None:
    """C6: and the turn that runs meanwhile goes on; no later boundary of that id counts."""
    await bound(host, "p1")
    async with host.saying() as running:
        assert not await host.coordinator.session_end(TENANT, "p1", reason)
    assert (await running).generation == 1
    assert not await host.coordinator.session_end(TENANT, "p1", "session_reset")
    assert await generation(host) == 1


async def test_only_the_boundary_bumps(host: Host) -> None:
    """C6: neither the turn after it, nor the next id, nor that id's harmless end moves the generation again."""
    await bound(host, "p1")
    assert await host.coordinator.session_end(TENANT, "p1", "session_switch")
    await bound(host, "p2")
    assert await generation(host) == 2
    await host.coordinator.session_end(TENANT, "p2", "agent_close")
    assert await generation(host) == 2


async def test_a_promotion_makes_a_boundary_of_an_accident(host: Host) -> None:
    """C6: once, of an id that has not ended or was only closed; of one that was ended, is a fork, or unknown, none."""
    promote, finish = host.coordinator.session_promote, host.coordinator.session_end
    for number, accident in enumerate((None, "agent_close", "ws_orphan_reap")):
        await bound(host, f"p{number}")
        if accident:
            await finish(TENANT, f"p{number}", accident)
        assert await promote(TENANT, f"p{number}", "suspended")
        assert not await promote(TENANT, f"p{number}")
        assert await generation(host) == number + 2
    await bound(host, "ended")
    await finish(TENANT, "ended", "compression")
    await bound(host, "fork", parent="ended", relation="branch")
    for session_id in ("ended", "fork", "unknown"):
        assert not await promote(TENANT, session_id)
    assert await generation(host) == 4


async def test_a_reason_that_is_none_is_refused(host: Host) -> None:
    """C6: a promotion is to a boundary, an end has a reason, and neither is of an id of ours."""
    await bound(host, "p1")
    ours = (await host.say()).session_id
    with pytest.raises(ValueError, match="reason"):
        await host.coordinator.session_promote(TENANT, "p1", "agent_close")
    with pytest.raises(ValueError, match="reason"):
        await host.coordinator.session_end(TENANT, "p1", "")
    for refused in (
        host.coordinator.session_record(TENANT, ours, source=SOURCE),
        host.coordinator.session_end(TENANT, ours, "idle"),
        host.coordinator.session_promote(TENANT, ours),
    ):
        with pytest.raises(ValueError, match="ours"):
            await refused
    assert await generation(host) == 1


async def test_an_end_of_an_earlier_generation_is_late(host: Host) -> None:
    """C6: after a reset, an idle boundary, a pruning or a deletion the turns of the new generation are spared."""
    moves: list[Callable[[], Awaitable[object]]] = [
        lambda: host.coordinator.reset_session(TENANT, HOME),
        lambda: host.coordinator.prune(TENANT, 0),
    ]
    for number, move in enumerate(moves):
        await host.say()
        await bound(host, f"p{number}")
        await move()
        async with host.saying() as running:
            assert not await host.coordinator.session_end(TENANT, f"p{number}", "session_reset")
        assert (await running).generation == number + 2


async def test_an_unkeyed_id_moves_nothing(host: Host) -> None:
    """C6, C1: without a key, or with the key under another source, this conversation does not hear of it."""
    await host.say()
    await host.coordinator.session_record(TENANT, "p1", source=SOURCE)
    await host.coordinator.session_record(TENANT, "p2", source="discord", key=KEY)
    assert not await host.coordinator.session_end(TENANT, "p1", "session_reset")
    assert await host.coordinator.session_end(TENANT, "p2", "session_reset")
    assert await generation(host) == 1
    assert (await host.say(Declared("discord", KEY))).generation == 2


async def test_a_boundary_stops_what_runs(start_host: Start) -> None:
    """C7: an end that moves the conversation on ends its turn, and who waits, wherever they are."""
    here, there = await start_host(), await start_host()
    await bound(here, "p1")
    async with there.saying() as running:
        waiting = asyncio.create_task(there.say())
        await until(lambda: here.waiting(1))
        assert await here.coordinator.session_end(TENANT, "p1", "session_reset")
        for stopped in (running, waiting):
            with pytest.raises(StaleGeneration):
                await stopped


async def test_a_compression_goes_on_where_it_was(host: Host) -> None:
    """C3, C6, D2: four physical ids one after the other; the last one's boundary is the conversation's."""
    await bound(host, "p0")
    for number in range(3):
        await host.coordinator.session_end(TENANT, f"p{number}", "compression")
        child = await host.coordinator.session_record(
            TENANT, f"p{number + 1}", source=SOURCE, parent=f"p{number}", relation="compression"
        )
        assert (child.key, child.generation) == (KEY, 1)
    assert await generation(host) == 1
    assert await host.coordinator.session_end(TENANT, "p3", "session_reset")
    assert await generation(host) == 2


async def test_a_deletion_moves_the_conversation_and_retires_the_id(host: Host) -> None:
    """C6, E2, B1: its record is dropped; it can neither be recorded nor be used again, whatever was pruned."""
    await bound(host, "p1", "p2")
    await host.coordinator.delete_session(TENANT, "p1")
    assert await host.coordinator.host_session(TENANT, "p1") is None
    assert await generation(host) == 2
    await host.coordinator.prune(TENANT, 0)
    for late in (
        host.coordinator.session_record(TENANT, "p1", source=SOURCE, key=KEY),
        host.say(Explicit("p1")),
        host.coordinator.delete_session(TENANT, "p1"),
    ):
        with pytest.raises(SessionNotFound):
            await late
    assert not await host.coordinator.session_end(TENANT, "p1", "session_reset")
    assert await generation(host) == 3  # the pruning's
    await host.coordinator.delete_session(TENANT, "p2")
    assert await generation(host) == 3


async def test_a_deletion_of_a_busy_conversations_id_is_refused(host: Host) -> None:
    """E3: nothing has moved when it is; forced, it ends the turn."""
    await bound(host, "p1")
    async with host.saying() as running:
        with pytest.raises(SessionBusy):
            await host.coordinator.delete_session(TENANT, "p1")
        record = await host.coordinator.host_session(TENANT, "p1")
        assert record is not None
        assert record.ended is None
    assert (await running).generation == 1
    async with host.saying() as running:
        await host.coordinator.delete_session(TENANT, "p1", force=True)
        with pytest.raises(TurnCancelled):
            await running
    assert await generation(host) == 2


async def test_a_fork_of_a_bound_id_is_deleted_alone(host: Host) -> None:
    """C6, D2: neither its end nor its deletion reaches the conversation it came from."""
    await bound(host, "p1")
    for relation in ("branch", "delegate", "tool", "review"):
        await bound(host, relation, parent="p1", relation=relation)
        assert not await host.coordinator.session_end(TENANT, relation, "session_reset")
        await host.coordinator.delete_session(TENANT, relation)
    assert await generation(host) == 1


async def test_records_and_turns_at_once_are_in_one_generation(start_host: Start) -> None:
    """C4, D2: a host's ids and first turns race on an unused key over three replicas: one scope, one session."""
    hosts = [await start_host(queue_limit=64) for _ in range(3)]

    async def act(number: int) -> str:
        host = hosts[number % 3]
        if number % 2:
            return (await host.say()).scope
        await bound(host, f"p{number}")
        return await host.coordinator.scope(TENANT, f"p{number}")

    assert len(set(await asyncio.gather(*map(act, range(30))))) == 1
    assert len(await hosts[0].coordinator.sessions(TENANT)) == 1


async def test_a_host_that_only_records_keeps_its_generation(host: Host) -> None:
    """E6, D2: as long as it records ids of the conversation, retention does not take it for idle."""
    await bound(host, "p1")
    key = "coord1:{acme}:tombstones"
    cid = (await asyncio.to_thread(host.server.cli, "ZRANGE", key, 0, -1))[0]
    await asyncio.to_thread(host.server.cli, "ZADD", key, 1, cid)
    await bound(host, "p2")
    assert await host.coordinator.prune(TENANT, HOUR_MS) == 0
    await bound(host, "p3")
    assert len({await host.coordinator.scope(TENANT, each) for each in ("p1", "p2", "p3")}) == 1


async def test_text_that_cannot_be_written_is_its_callers_error_alone(host: Host) -> None:
    """B33: half a character in a host's key fails that call, not the calls of others that went out with it."""
    outcomes = await asyncio.gather(
        host.coordinator.session_record(TENANT, "p1", source=SOURCE, key="\ud800"),
        host.coordinator.session_record("beta", "p2", source=SOURCE, key=KEY),
        host.say(Declared("\ud800", "k")),
        host.say(),
        return_exceptions=True,
    )
    assert [isinstance(outcome, ValueError) for outcome in outcomes] == [True, False, True, False]
    assert (await host.coordinator.session_record("beta", "p2", source=SOURCE)).key == KEY
