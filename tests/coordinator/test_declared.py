"""Conversations that a host declares: one session a generation, on every replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coordinator import (
    Address,
    AdmissionConflict,
    Daily,
    Declared,
    Explicit,
    Implicit,
    Minted,
    SessionBusy,
    SessionNotFound,
    StaleGeneration,
)
from tests.coordinator.hosting import ANSWER, HOME, HOUR_MS, REASONS, TENANT, Host, asked
from tests.support.waiting import until

Start = Callable[..., Awaitable[Host]]


async def test_first_requests_on_one_key_get_one_session(start_host: Start) -> None:
    """C4: thirty at the same moment over three replicas: one session, one binding, nothing else is listed."""
    hosts = [await start_host(queue_limit=64) for _ in range(3)]
    for number in range(3):
        address = Declared("telegram", f"new-{number}")
        said = await asyncio.gather(*(hosts[i % 3].say(address) for i in range(30)))
        assert len({one.session_id for one in said}) == 1
        assert {one.generation for one in said} == {1}
        assert len({one.fence for one in said}) == 30
    assert len(await hosts[0].coordinator.sessions(TENANT)) == 3


async def test_the_pair_is_the_identity(host: Host) -> None:
    """C1, B51: the same key of two sources, of two tenants, and pairs that are one text when glued together."""
    pairs = [("a|b", "c"), ("a", "b|c"), ("a", "b"), ("b", "a"), ("", "ab"), ("ab", ""), ("a:1", "2"), ("a", "1:2")]
    said = [await host.say(Declared(*pair)) for pair in pairs]
    said += [await host.say(Declared(*pair), tenant="beta") for pair in pairs]
    for of in ("session_id", "scope"):
        assert len({getattr(one, of) for one in said}) == 2 * len(pairs)
    await host.coordinator.reset_session(TENANT, Declared("a", "b|c"))
    again = [await host.say(Declared(*pair)) for pair in pairs]
    assert [after.generation for after in again] == [2 if pair == ("a", "b|c") else 1 for pair in pairs]


@pytest.mark.parametrize("reason", REASONS)
async def test_a_reset_opens_the_next_generation(start_host: Start, reason: str) -> None:
    """C6, C5: by any of its six reasons, seen by every replica at once; the next turn follows."""
    here, there = await start_host(), await start_host()
    first = await here.say()
    done = await here.coordinator.reset_session(TENANT, HOME, reason=reason)
    assert (done.generation, done.reason, done.ended_session_id) == (2, reason, first.session_id)
    with pytest.raises(SessionNotFound):
        await there.say(Explicit(first.session_id))
    second = await there.say()
    assert (second.session_id, second.generation) == (done.session_id, 2)
    assert second.fence > first.fence
    assert (await here.say()).session_id == second.session_id
    assert (await here.coordinator.session(TENANT, second.session_id)).source == "telegram"


async def test_nothing_is_left_of_what_was_said_before(host: Host) -> None:
    """C7, G4: the next generation starts without a history, and no record of the old one's turns is kept."""
    first = await host.say()
    assert len(await host.coordinator.messages(TENANT, first.session_id)) == 1
    done = await host.coordinator.reset_session(TENANT, HOME)
    async with host.coordinator.turn(asked()) as turn:
        assert turn.history == []
        await turn.refuse(ANSWER)
    with pytest.raises(SessionNotFound):
        await host.coordinator.messages(TENANT, first.session_id)
    assert len(await host.coordinator.turns(TENANT, done.session_id)) == 1
    assert await asyncio.to_thread(host.server.cli, "KEYS", "*:leftovers:*") == []


async def test_a_reset_ends_turns_and_waiters(start_host: Start) -> None:
    """C7, G4: on whichever replica; holder and waiters by the key are stale, who waits by the id finds nothing."""
    here, there = await start_host(), await start_host()
    async with there.saying() as running:
        current = (await here.coordinator.sessions(TENANT))[0].id
        by_key = asyncio.create_task(there.say())
        by_id = asyncio.create_task(there.say(Explicit(current)))
        await until(lambda: here.waiting(2))
        done = await here.coordinator.reset_session(TENANT, HOME)
        assert len(done.stopped) == 1
        outcomes = await asyncio.gather(running, by_key, by_id, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StaleGeneration, StaleGeneration, SessionNotFound]
    newer = await here.say()
    assert newer.session_id == done.session_id
    assert await here.coordinator.messages(TENANT, newer.session_id) == [b"{}"]


async def test_a_late_commit_of_an_earlier_generation_is_refused(start_host: Start) -> None:
    """C5, G2: a holder that looked away meanwhile commits nothing, whatever came after the reset."""
    here, there = await start_host(), await start_host()
    async with there.coordinator.turn(asked()) as turn:
        turn._task = None  # it does not notice that it is asked to stop
        await here.coordinator.reset_session(TENANT, HOME)
        newer = await here.say()
        with pytest.raises(StaleGeneration):
            await turn.finish(ANSWER, messages=[b"late"])
    assert await here.coordinator.messages(TENANT, newer.session_id) == [b"{}"]


async def test_one_reset_sent_many_times_is_one(start_host: Start) -> None:
    """C7, B62: five at once, one during a new turn, one after another reset: one bump, the newer turn lives."""
    hosts = [await start_host() for _ in range(3)]
    await hosts[0].say()

    def reset(number: int, key: str = "k1") -> Awaitable[object]:
        return hosts[number % 3].coordinator.reset_session(TENANT, HOME, idempotency_key=key)

    first, *others = await asyncio.gather(*(reset(number) for number in range(5)))
    assert others == [first] * 4
    async with hosts[0].saying() as running:
        assert await reset(5) == first
    assert (await running).generation == 2
    await reset(6, "k2")
    async with hosts[1].saying() as running:
        assert await reset(7) == first
    assert (await running).generation == 3


async def test_a_key_names_one_reset(host: Host) -> None:
    """F2: for another conversation, reason or condition, or for a turn, it is a conflict; and the other way round."""
    other = Declared("telegram", "chat-43")
    first = await host.say()
    await host.say(other)
    reset = host.coordinator.reset_session
    done = await reset(TENANT, HOME, idempotency_key="k1")
    for again in (
        reset(TENANT, other, idempotency_key="k1"),
        reset(TENANT, Explicit(first.session_id), idempotency_key="k1"),
        reset(TENANT, HOME, reason="idle", idempotency_key="k1"),
        reset(TENANT, HOME, expected=2, idempotency_key="k1"),
        host.say(idempotency_key="k1"),
    ):
        with pytest.raises(AdmissionConflict):
            await again
    await host.say(idempotency_key="k2")
    with pytest.raises(AdmissionConflict):
        await reset(TENANT, HOME, idempotency_key="k2")
    assert await reset(TENANT, HOME, idempotency_key="k1") == done
    assert (await host.say(other)).generation == 1


async def test_a_reset_can_say_what_it_expects(host: Host) -> None:
    """C7: a session id or a generation; the wrong one is stale and stops nobody."""
    first = await host.say()
    async with host.saying() as running:
        for wrong in (2, "2", 0, "x", f"ses_{first.session_id[4:29]}_1_{16 * '0'}"):
            with pytest.raises(StaleGeneration):
                await host.coordinator.reset_session(TENANT, HOME, expected=wrong)
    assert (await running).generation == 1
    assert (await host.coordinator.reset_session(TENANT, HOME, expected=first.session_id)).generation == 2
    assert (await host.coordinator.reset_session(TENANT, HOME, expected=2)).generation == 3


async def test_what_cannot_be_reset(host: Host) -> None:
    """C7: an id that a client chose, and a reason that is none; what is unknown is not found and not created."""
    await host.say(Explicit("mine"))
    for address, reason in ((Explicit("mine"), "idle"), (HOME, "deleted"), (HOME, "compression"), (HOME, "")):
        with pytest.raises(ValueError, match=r"next generation|reason"):
            await host.coordinator.reset_session(TENANT, address, reason=reason)
    for unknown in (HOME, Explicit(f"ses_i{24 * '0'}_1_{16 * '0'}")):
        with pytest.raises(SessionNotFound):
            await host.coordinator.reset_session(TENANT, unknown)
    assert [view.id for view in await host.coordinator.sessions(TENANT)] == ["mine"]


@pytest.mark.parametrize("address", [Implicit((b"hi",)), Minted()], ids=["implicit", "minted"])
async def test_other_sessions_of_ours_can_be_reset(host: Host, address: Address) -> None:
    """C7: found by their opening, or minted: the next generation is announced, and the opening leads there."""
    first = await host.say(address)
    done = await host.coordinator.reset_session(TENANT, Explicit(first.session_id))
    assert done.generation == 2
    with pytest.raises(SessionNotFound):
        await host.say(Explicit(first.session_id))
    second = await host.say(Explicit(done.session_id) if isinstance(address, Minted) else address)
    assert second.session_id == done.session_id


async def test_a_conversation_that_rested_begins_anew(start_host: Start) -> None:
    """C8: past the idle time the next turn is in the next generation; before it, or without the policy, it is not."""
    patient, idle = await start_host(), await start_host(idle_ms=HOUR_MS)
    first = await idle.say()
    await idle.rest(HOUR_MS - 60_000)
    assert (await idle.say()).session_id == first.session_id
    await idle.rest(HOUR_MS + 1_000)
    assert (await patient.say()).session_id == first.session_id
    await idle.rest(HOUR_MS + 1_000)
    second = await idle.say()
    assert (second.generation, second.session_id != first.session_id) == (2, True)
    assert (await patient.say()).session_id == second.session_id


@pytest.mark.parametrize(("rested_h", "generation"), [(1, 1), (13, 2), (24 * 40, 2), (-1, 1)])
async def test_a_daily_boundary_passes(start_host: Start, rested_h: int, generation: int) -> None:
    """C8: at the time of day that is set, by the store's clock; an activity in the future is no rest."""
    seconds, _ = await asyncio.to_thread((await start_host()).server.cli, "TIME")
    at = (int(seconds) // 60 - 12 * 60) % (24 * 60)
    host = await start_host(daily=Daily.parse(f"{at // 60:02}:{at % 60:02}@UTC"))
    await host.say()
    await host.rest(rested_h * HOUR_MS)
    assert (await host.say()).generation == generation


async def test_a_named_id_that_rested_too_long_is_not_found(start_host: Start) -> None:
    """C8, B1: it is retired then, and never moved to the next generation."""
    host = await start_host(idle_ms=HOUR_MS)
    first = await host.say()
    await host.rest(2 * HOUR_MS)
    for _ in range(2):
        with pytest.raises(SessionNotFound):
            await host.say(Explicit(first.session_id))
    assert (await host.say()).generation == 2


async def test_a_boundary_spares_the_turn_that_runs(start_host: Start) -> None:
    """C8: it came due while a healthy turn ran: who comes then waits or is busy, and all stay in the generation."""
    host = await start_host(idle_ms=HOUR_MS)
    async with host.saying() as running:
        await host.rest(2 * HOUR_MS)
        with pytest.raises(SessionBusy):
            await host.say(policy="reject")
        waiting = asyncio.create_task(host.say())
        await until(lambda: host.waiting(1))
    assert ((await running).generation, (await waiting).generation) == (1, 1)


@pytest.mark.parametrize("how", ["cancelled", "failed", "refused"])
async def test_a_turn_without_an_answer_is_no_rest(start_host: Start, how: str) -> None:
    """C8: it took longer than the idle time and ended a moment ago: what comes next goes on in its session."""
    host = await start_host(idle_ms=HOUR_MS)

    async def end() -> None:
        async with host.coordinator.turn(asked()) as turn:
            await host.rest(2 * HOUR_MS)
            if how == "refused":
                await turn.refuse(ANSWER)
            elif how == "cancelled":
                raise asyncio.CancelledError

    await asyncio.wait({asyncio.create_task(end())})
    assert (await host.say()).generation == 1


async def test_generations_outlive_everything_but_the_store(host: Host) -> None:
    """C5, E6, J12: deleted, pruned without a horizon, reset, lost: no session id or scope comes twice."""
    said = [await host.say()]
    for number in range(4):
        await host.coordinator.delete_session(TENANT, said[-1].session_id)
        said.append(await host.say())
        assert await host.coordinator.prune(TENANT, 0) >= 1
        said.append(await host.say())
        await host.coordinator.reset_session(TENANT, HOME)
        await host.coordinator.prune(TENANT, 0)
        said.append(await host.say())
        assert said[-1].generation == 3 * number + 4
    assert [one.generation for one in said] == list(range(1, 14))
    await asyncio.to_thread(host.server.flushall)
    said.append(await host.say())
    assert said[-1].generation == 1
    for of in ("session_id", "scope"):
        assert len({getattr(one, of) for one in said}) == len(said)
    assert [one.fence for one in said] == sorted(one.fence for one in said)


async def test_of_an_idle_conversation_a_counter_stays(host: Host) -> None:
    """E6, C5: pruned, it shrinks to one key without a transcript, and is not listed any more."""
    first = await host.say()
    assert await host.coordinator.prune(TENANT, 0) == 1
    assert await host.coordinator.sessions(TENANT) == []
    with pytest.raises(SessionNotFound):
        await host.coordinator.session(TENANT, first.session_id)
    assert len(await asyncio.to_thread(host.server.cli, "KEYS", "*:conversation:*")) == 1
    assert await asyncio.to_thread(host.server.cli, "KEYS", "*:messages:*") == []
    assert await host.coordinator.prune(TENANT, 0) == 0


async def test_a_clock_that_steps_back_changes_nothing(host: Host) -> None:
    """C5, B16: an hour back between two resets, and every time lies in the future: the generation goes on."""
    await host.say()
    first = await host.coordinator.reset_session(TENANT, HOME)
    await host.say()
    await host.rest(-HOUR_MS)
    second = await host.coordinator.reset_session(TENANT, HOME)
    assert (first.generation, second.generation) == (2, 3)
    assert (await host.say()).session_id == second.session_id


async def test_a_session_can_be_opened_without_a_turn(start_host: Start) -> None:
    """C4, B1: by its key, once; the first turn finds it; a retired id and one of our pattern are refused."""
    here, there = await start_host(), await start_host()
    opened = await asyncio.gather(
        *(one.coordinator.open_session(TENANT, HOME, history="client") for one in (here, there) * 5)
    )
    assert [new for _, new in opened].count(True) == 1
    assert len({view.id for view, _ in opened}) == 1
    view = opened[0][0]
    assert (view.kind, view.source, view.history, view.generation, view.turns) == ("d", "telegram", "client", 1, 0)
    assert (await there.say()).session_id == view.id
    await here.coordinator.delete_session(TENANT, view.id)
    for refused in (view.id, f"ses_m{24 * '0'}_1_{16 * '0'}"):
        with pytest.raises(SessionNotFound):
            await here.coordinator.open_session(TENANT, Explicit(refused))


async def test_a_fork_goes_its_own_way(host: Host) -> None:
    """D2, C6: it starts with the transcript, has a scope of its own, and its deletion moves no declared generation."""
    first = await host.say()
    fork = await host.coordinator.fork_session(TENANT, first.session_id)
    assert await host.coordinator.messages(TENANT, fork.id) == [b"{}"]
    assert (fork.kind, fork.source) == ("m", "telegram")
    assert fork.scope.startswith("gws_")
    assert (await host.say(Explicit(fork.id))).scope == fork.scope
    await host.coordinator.delete_session(TENANT, fork.id)
    assert (await host.say()).session_id == first.session_id
    with pytest.raises(SessionNotFound):
        await host.coordinator.fork_session(TENANT, fork.id)
