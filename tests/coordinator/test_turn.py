"""A turn: held while its block runs, told when it is over, committed in one step or not at all."""

from __future__ import annotations

import asyncio
import time
from time import monotonic

import pytest

from coordinator import (
    CommitUnconfirmed,
    Declared,
    Explicit,
    Implicit,
    LeaseLost,
    Replay,
    StaleGeneration,
    TurnCancelled,
    UnknownExecution,
)
from tests.coordinator.turns import (
    CANCELLING,
    RUNNING,
    TENANT,
    Held,
    answer,
    ask,
    end_lease,
    lease_left_ms,
    run,
    state_of,
)
from tests.support.waiting import until

LEASE = {"lease_ms": 900}


async def transcript(coordinator, session_id="s"):
    """The transcript's texts."""
    return [message.decode().strip('"') for message in await coordinator.messages(TENANT, session_id)]


async def test_a_turn_outlives_its_first_lease(start, store_server):
    """G5, B28: a long healthy turn commits, nobody else ran meanwhile, and the next is granted at once."""
    one, other = await start(**LEASE), await start(**LEASE)
    held = await Held.granted_to(one, ask())
    began = monotonic()
    waiting = await Held.queued(other, ask(), store_server)
    await until(lambda: monotonic() > began + 2.2)
    assert not waiting.granted.is_set()
    await held.end()
    await waiting.end()
    assert await transcript(one) == ["hello", "hello"]


@pytest.mark.parametrize("how", ["taken", "by hand"])
async def test_a_lost_lease_ends_the_block_at_once(start, store_server, how):
    """G5: the work is cancelled at the next renewal, LeaseLost tells why, and nothing is recorded."""
    one, other = await start(**LEASE), await start(**LEASE)
    held = await Held.granted_to(one, ask())
    if how == "taken":
        end_lease(store_server, held.turn.id)
        await run(other, ask(), "other")
    else:
        store_server.cli("ZREM", RUNNING, held.turn.id)
    began = monotonic()
    with pytest.raises(LeaseLost):
        await held.task
    assert monotonic() - began < 0.9 / 3 + 0.3
    assert await transcript(other) == (["other"] if how == "taken" else [])
    assert one.running == 0


async def test_a_turn_that_was_asked_to_stop_ends_as_cancelled(start, store_server):
    """G7, G8: from another replica, within a moment; everybody is told so, its key too, and the next is granted."""
    one, other = await start(), await start()
    held = await Held.granted_to(one, ask(key="k"))
    assert await other.cancel_session(TENANT, "s") == [held.turn.id]
    with pytest.raises(TurnCancelled):
        await held.task
    assert state_of(store_server, held.turn.id) == "cancelled"
    with pytest.raises(TurnCancelled):
        await run(other, ask(key="k"))
    assert store_server.cli("SCARD", CANCELLING) == 0
    await run(other, ask())
    assert await other.cancel_turn(TENANT, held.turn.id) is False


@pytest.mark.parametrize("address", [Declared("app", "d"), Implicit((b"", b"hi"))])
async def test_a_reset_ends_the_turns_of_the_old_generation(start, address):
    """C7: with StaleGeneration, not as if somebody had stopped them; a deletion's are cancelled."""
    one, other = await start(implicit_turns="exclusive"), await start(implicit_turns="exclusive")
    held = await Held.granted_to(one, ask(address))
    await other.reset_session(TENANT, Explicit(held.turn.session_id))
    with pytest.raises(StaleGeneration):
        await held.task
    again = await Held.granted_to(one, ask(address))
    await other.delete_session(TENANT, again.turn.session_id, force=True)
    with pytest.raises(TurnCancelled):
        await again.task


async def test_once_the_finish_is_sent_only_its_answer_counts(start, store_server, stop):
    """G5: a loss that is noticed while the commit is under way stops nothing: here the commit had come first."""
    coordinator = await start(**LEASE)
    committed, told = stop.slow("turn_finish")
    held = await Held.granted_to(coordinator, ask(key="k"))
    held.let_go()
    await until(committed.is_set)
    assert state_of(store_server, held.turn.id) == "completed"
    # Its lease is released: the renewals in the meantime hear that it is lost.
    await until(lambda: coordinator.running == 0)
    told.set()
    await held.task
    assert isinstance(replay := await run(coordinator, ask(key="k")), Replay)
    assert replay.turn.result == answer()


async def test_a_late_renewal_cannot_cancel_a_committed_turn(start, stop):
    """G5: its answer arrives after the commit, when the task has gone on to something else."""
    coordinator = await start(**LEASE)
    renewed, told = stop.slow("turn_renew", before=True)

    async def two_turns():
        async with coordinator.turn(ask("one")) as turn:
            await until(renewed.is_set)
            await turn.finish(answer())
        async with coordinator.turn(ask("two")) as turn:
            told.set()
            await asyncio.sleep(0.2)
            await turn.finish(answer())

    await two_turns()


@pytest.mark.parametrize("kept", ["by the store", "for another"])
async def test_cleaning_up_cannot_release_a_successors_lease(start, store_server, stop, kept):
    """G2: a turn that was stopped, and whose end reaches the store late, ends nobody but itself."""
    one, other = await start(), await start()
    abandoning, go_on = stop.slow("turn_abandon", before=True)
    held = await Held.granted_to(one, ask(key="k"))
    await other.cancel_session(TENANT, "s")
    await until(abandoning.is_set)
    end_lease(store_server, held.turn.id)
    successor = await Held.granted_to(other, ask(key="k2"))
    if kept == "for another":
        store_server.cli("SREM", CANCELLING, held.turn.id)
    go_on.set()
    with pytest.raises(TurnCancelled):
        await held.task
    assert (lease_left_ms(store_server, successor.turn.id) or 0) > 0
    await successor.end()
    assert await transcript(other) == ["hello"]


async def test_without_the_store_a_turn_stops_before_anybody_is_granted(start, store_server, stop):
    """G5, G9: by its own deadline, while the store's lease still stands; when the store is back that is given up, so
    that nobody has to wait for its end."""
    one, other = await start(**LEASE), await start(**LEASE)
    held = await Held.granted_to(one, ask(key="k"))
    stop.losing("turn_renew", times=100)  # the store renews, and nobody hears of it
    with pytest.raises(LeaseLost):
        await held.task
    assert (lease_left_ms(store_server, held.turn.id) or 900) > 0
    await until(lambda: state_of(store_server, held.turn.id) == "interrupted")
    await asyncio.wait_for(run(other, ask()), 0.5)
    with pytest.raises(UnknownExecution):
        await run(other, ask(key="k"))


async def test_past_its_own_deadline_nothing_is_committed(start, store_server):
    """G2, G5: a holder that slept through its lease does not commit, though the store would still let it."""
    coordinator = await start(lease_ms=500)
    request = ask(key="k")

    async def sleeping():
        async with coordinator.turn(request) as turn:
            kept = turn._kept
            time.sleep(0.01)
            kept.deadline = monotonic() - 0.001  # as if the whole process had slept
            with pytest.raises(LeaseLost):
                await turn.append([b"e"])
            await turn.finish(answer())

    with pytest.raises(LeaseLost):
        await sleeping()
    with pytest.raises(UnknownExecution):
        await run(coordinator, request)
    assert store_server.cli("EXISTS", "coord1:{default}:running") == 0


async def test_who_was_told_interrupted_is_not_told_otherwise_later(start, store_server):
    """G8, F5: the old holder can neither complete its turn nor free its key."""
    one, other = await start(**LEASE), await start(**LEASE)

    async def holding():
        async with one.turn(ask(key="k")) as turn:
            end_lease(store_server, turn.id)
            with pytest.raises(UnknownExecution):
                await run(other, ask(key="k"))
            await turn.refuse(answer("no"))

    await holding()
    with pytest.raises(UnknownExecution):
        await run(other, ask(key="k"))
    with pytest.raises(UnknownExecution):
        await run(one, ask(key="k"))


async def test_a_refused_turn_is_as_if_it_had_never_been(start):
    """F6: its key is free at once; who joined is told the same refusal."""
    coordinator = await start()
    refusal = answer("the model is not known")

    async def refused():
        async with coordinator.turn(ask(key="k")) as turn:
            joining = [asyncio.create_task(run(coordinator, ask(key="k"))) for _ in range(5)]
            await asyncio.sleep(0.05)
            await turn.refuse(refusal)
        return await asyncio.gather(*joining)

    for replay in await refused():
        assert isinstance(replay, Replay)
        assert (replay.turn.state, replay.turn.result) == ("refused", refusal)
    assert not isinstance(await run(coordinator, ask(key="k")), Replay)


@pytest.mark.parametrize(("error", "state"), [(KeyError("a bug"), "failed"), (asyncio.CancelledError(), "cancelled")])
async def test_a_block_that_is_left_ends_its_turn(start, store_server, error, state):
    """G6, B40: whatever it is left by, the conversation is free, and the key tells that nobody knows more."""
    coordinator = await start()
    turn = coordinator.turn(ask(key="k"))

    async def leaving():
        async with turn:
            raise error

    with pytest.raises(type(error)):
        await leaving()
    assert state_of(store_server, turn.id) == state
    await run(coordinator, ask())


async def test_a_block_cancelled_from_outside_leaves_with_that(start, store_server):
    """H4: a cancellation that is not the turn's own stays one, and the turn ends as cancelled."""
    coordinator = await start()
    held = await Held.granted_to(coordinator, ask())
    held.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held.task
    assert state_of(store_server, held.turn.id) == "cancelled"
    assert store_server.cli("ZCARD", RUNNING) == 0


async def test_both_cancellations_at_once_leave_with_the_outer(start, store_server):
    """G7: who asked the task to end is not talked out of it by a turn that ends at the same moment."""
    coordinator = await start()
    held = await Held.granted_to(coordinator, ask())
    held.turn._on_lost("cancelled")
    held.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held.task


async def test_the_task_is_as_it_was_after_a_loss(start, store_server):
    """G5: the cancellation that ended the block is taken back, so time-outs around it go on working."""
    coordinator = await start(**LEASE)

    async def losing():
        async with coordinator.turn(ask()) as turn:
            store_server.cli("ZREM", RUNNING, turn.id)
            await asyncio.Event().wait()

    async with asyncio.timeout(5):
        with pytest.raises(LeaseLost):
            await losing()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_unconfirmed_commit_goes_on(start, store_server, stop):
    """J1: told as unconfirmed when its patience ends, it is still tried until the lease ends, and then is there."""
    coordinator = await start(commit_patience_ms=100, lease_ms=3_000)
    over = stop.failing("turn_finish")
    held = await Held.granted_to(coordinator, ask(key="k"))
    with pytest.raises(CommitUnconfirmed):
        await held.end()
    over.set()
    await until(lambda: state_of(store_server, held.turn.id) == "completed")
    assert isinstance(await run(coordinator, ask(key="k")), Replay)


async def test_a_failed_release_costs_nobody_an_answer(start, store_server, stop):
    """B11, B40: a store that is away as a turn ends holds up no caller, and the turn is released once it is back."""
    coordinator = await start()
    over = stop.failing("turn_abandon")

    async def refused():
        async with coordinator.turn(ask(key="k")) as turn:
            await turn.refuse(answer("no"))

    began = monotonic()
    await refused()
    assert monotonic() - began < 0.5
    assert store_server.cli("ZCARD", RUNNING) == 1
    over.set()
    await until(lambda: store_server.cli("ZCARD", RUNNING) == 0)
    assert not isinstance(await run(coordinator, ask(key="k")), Replay)


async def test_a_replica_that_ends_interrupts_its_turns(start, store_server):
    """J6: they read interrupted at once, on every replica, and their conversations are free."""
    one, other = await start(), await start()
    held = [await Held.granted_to(one, ask(name, key=name)) for name in ("s", "t")]
    one.drain()
    one.interrupt()
    for each in held:
        with pytest.raises(LeaseLost):
            await each.task
        assert state_of(store_server, each.turn.id) == "interrupted"
    for name in ("s", "t"):
        with pytest.raises(UnknownExecution):
            await run(other, ask(name, key=name))
        await run(other, ask(name))


async def test_a_dead_turn_that_was_read_once_stays_interrupted(start, store_server):
    """G6, G8: whoever looks settles it, for every later look and for the holder itself."""
    one, other = await start(), await start()
    held = await Held.granted_to(one, ask(key="k"))
    end_lease(store_server, held.turn.id)
    assert state_of(store_server, held.turn.id) == "running"
    for coordinator in (other, one, other):
        view = await coordinator.turn_view(TENANT, held.turn.id)
        assert view is not None
        assert view.state == "interrupted"
    held.let_go()
    with pytest.raises(LeaseLost):
        await held.task
    view = await other.turn_view(TENANT, held.turn.id)
    assert view is not None
    assert view.state == "interrupted"


async def test_a_fence_grows_and_tells_the_turns_apart(start):
    """G2, G12: also over the replicas."""
    fences = [(await run(await start(), ask())).fence for _ in range(3)]
    assert fences == sorted(set(fences))
