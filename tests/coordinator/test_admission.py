"""Admission: who is granted, who waits and for how long, who joins, and what is left of those who leave."""

from __future__ import annotations

import asyncio
import time
from time import monotonic

import pytest

from coordinator import (
    AdmissionConflict,
    Draining,
    IdempotencyExpired,
    Implicit,
    LimitReached,
    QueueFull,
    Replay,
    SessionBusy,
    SessionNotFound,
    StaleGeneration,
    StoreUnavailable,
    TurnCancelled,
    UnknownExecution,
)
from tests.coordinator.turns import (
    RUNNING,
    TENANT,
    WAITING,
    Held,
    answer,
    ask,
    end_lease,
    lease_left_ms,
    run,
    state_of,
)
from tests.support.waiting import until

QUEUES = "*:queue:*"


def traces(server):
    """What requests that came to nothing could leave behind."""
    return [*server.cli("KEYS", QUEUES), *server.cli("KEYS", "*:waiting"), *server.cli("KEYS", "*:idempotency:*")]


async def test_waiters_are_granted_in_their_order(start, store_server):
    """G3: over two replicas, first come first served."""
    replicas = [await start(), await start()]
    order: list[int] = []
    first = await Held.granted_to(replicas[0], ask())

    async def wait(number):
        async with replicas[number % 2].turn(ask()) as turn:
            order.append(number)
            await turn.finish(answer())

    waiting = []
    for number in range(6):
        waiting.append(asyncio.create_task(wait(number)))
        await until(lambda number=number: store_server.cli("ZCARD", WAITING) == number + 1)
    await first.end()
    await asyncio.gather(*waiting)
    assert order == list(range(6))


async def test_the_hand_off_is_pushed(start, store_server):
    """G11: the next waiter starts at the release, not at its next poll."""
    one, other = await start(poll_ms=10_000, vouch_ms=30_000), await start(poll_ms=10_000, vouch_ms=30_000)
    first = await Held.granted_to(one, ask())
    second = await Held.queued(other, ask(), store_server)
    began = monotonic()
    await first.end()
    await second.end()
    assert monotonic() - began < 0.5


async def test_the_end_of_a_dead_lease_is_not_slept_through(start, store_server):
    """G6: nobody sends a message when a replica dies: a waiter asks when the lease in front of it ends."""
    one, other = await start(lease_ms=900), await start(lease_ms=900, poll_ms=10_000, vouch_ms=30_000)
    dead = await Held.granted_to(one, ask())
    one._keeper.release(dead.turn.id)  # its replica is gone: nothing is renewed any more
    await until(lambda: 0 < (lease_left_ms(store_server, dead.turn.id) or 0) < 800)
    waiting = await Held.queued(other, ask(), store_server)
    await asyncio.wait_for(waiting.granted.wait(), 1.2)
    assert (lease_left_ms(store_server, dead.turn.id)) is None
    await waiting.end()
    dead.task.cancel()
    await asyncio.wait({dead.task})


async def test_reject_does_not_wait(start, store_server):
    """G3: busy at once, with a time to wait, and no trace."""
    one, other = await start(), await start(turn_policy="reject")
    held = await Held.granted_to(one, ask())
    for coordinator, policy in ((one, "reject"), (other, None)):
        with pytest.raises(SessionBusy) as refused:
            await run(coordinator, ask(key="k", policy=policy))
        assert (refused.value.holder, 1 <= refused.value.retry_after_s <= 5) == (one.settings.replica, True)
    assert traces(store_server) == []
    await held.end()


async def test_an_interrupter_is_first_in_line(start, store_server):
    """G3: the running turn is asked to stop, those who wait are passed, and go on waiting."""
    one, other = await start(), await start()
    running = await Held.granted_to(one, ask())
    waiting = await Held.queued(one, ask(), store_server)
    interrupting = await Held.granted_to(other, ask(policy="interrupt"))
    with pytest.raises(TurnCancelled):
        await running.task
    assert not waiting.granted.is_set()
    await interrupting.end()
    await waiting.end()
    assert state_of(store_server, running.turn.id) == "cancelled"


async def test_waiting_has_an_end(start, store_server):
    """G3, B49: after `turn_wait` it is busy; the place is gone, the key was never taken, and nothing runs later."""
    coordinator = await start(turn_wait_ms=250)
    held = await Held.granted_to(coordinator, ask())
    began = monotonic()
    with pytest.raises(SessionBusy):
        await run(coordinator, ask(key="k"))
    assert 0.25 <= monotonic() - began < 1
    await until(lambda: traces(store_server) == [])
    await held.end()
    await run(coordinator, ask(key="k"))


async def test_who_slept_past_its_time_is_not_granted(start, store_server, stop):
    """G13: a waiter whose process slept does not ask again when it wakes: its caller has given up."""
    coordinator = await start(turn_wait_ms=300)
    held = await Held.granted_to(coordinator, ask())
    waiting = await Held.queued(coordinator, ask(key="k"), store_server)
    asked: list[str] = []
    stop.watching("turn_begin", lambda tenant, target, turn, **rest: asked.append(turn))
    end_lease(store_server, held.turn.id)  # so the conversation is free
    time.sleep(0.35)
    with pytest.raises(SessionBusy):
        await waiting.task
    assert asked == []
    await until(lambda: traces(store_server) == [])
    await held.end()


async def test_a_grant_that_came_too_late_is_not_started(start, store_server, stop):
    """G5, G13: its lease ended on the way; nothing is dispatched under it, and it is taken back."""
    coordinator = await start(lease_ms=500)
    stop.late("turn_begin", 0.6)
    held = Held(coordinator, ask(key="k"))
    with pytest.raises(StoreUnavailable):
        await held.task
    assert not held.granted.is_set()
    await until(lambda: traces(store_server) == [])
    assert store_server.cli("ZCARD", RUNNING) == 0


async def test_a_full_queue_refuses(start, store_server):
    """G3: one more than `queue_limit` is turned away without a trace; those in line keep their place."""
    coordinator = await start(queue_limit=2)
    held = [await Held.granted_to(coordinator, ask())]
    held += [await Held.queued(coordinator, ask(), store_server, count) for count in (1, 2)]
    for policy in (None, "interrupt"):
        with pytest.raises(QueueFull):
            await run(coordinator, ask(key="k", policy=policy))
    assert store_server.cli("ZCARD", WAITING) == 2
    for each in held:
        await each.end()
    assert traces(store_server) == []


@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.01, 0.05])
async def test_a_caller_that_leaves_leaves_no_trace(start, store_server, after):
    """G3, G13: cancelled at any moment of its admission: no place, no key, and no grant that nobody holds."""
    coordinator = await start()
    held = await Held.granted_to(coordinator, ask("busy"))
    leaving = [asyncio.create_task(run(coordinator, ask(name, key=f"k{n}"))) for n, name in enumerate(("busy", "free"))]
    await asyncio.sleep(after)
    done = [task for task in leaving if task.done()]
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    left = {f"k{n}" for n, task in enumerate(leaving) if task not in done and task.cancelled()}
    await until(lambda: store_server.cli("ZCARD", RUNNING) == 1)
    await until(lambda: store_server.cli("KEYS", QUEUES) == [] and store_server.cli("ZCARD", WAITING) == 0)
    await held.end()
    for n, name in enumerate(("busy", "free")):
        if f"k{n}" in left and not any(task in done for task in leaving):
            await asyncio.wait_for(ended(coordinator, name, f"k{n}"), 2)


async def ended(coordinator, name, key):
    """The same request again is answered: it runs, or tells how the one that was cut off ended."""
    try:
        await run(coordinator, ask(name, key=key))
    except TurnCancelled:
        return


async def test_a_cut_off_question_is_taken_back(start, store_server, stop):
    """G13: granted, but the answer was lost: the grant and its key are free again within a moment."""
    coordinator = await start()
    stop.losing("turn_begin")
    with pytest.raises(StoreUnavailable):
        await run(coordinator, ask(key="k"))
    await until(lambda: store_server.cli("ZCARD", RUNNING) == 0, timeout_s=1)
    assert not isinstance(await run(coordinator, ask(key="k")), Replay)


async def test_a_question_that_arrives_after_it_was_taken_back(start, store_server, stop):
    """G13: what is still on its way is taken back when it gets there, until its time is up."""
    coordinator = await start(patience_ms=600, lease_ms=30_000)
    held = await Held.granted_to(coordinator, ask("other"))
    steps, sent = coordinator._steps, []
    real = steps.turn_begin

    async def on_its_way(*args, **options):
        sent.append((args, options))
        raise StoreUnavailable("cut off, as the test wants it")

    steps.turn_begin = on_its_way
    with pytest.raises(StoreUnavailable):
        await run(coordinator, ask(key="k"))
    steps.turn_begin = real
    (args, options) = sent[0]
    await asyncio.sleep(0.1)  # the first taking back has found nothing
    await real(*args, **options)
    await until(lambda: store_server.cli("ZCARD", RUNNING) == 1, timeout_s=1)
    await held.end()
    assert not isinstance(await run(coordinator, ask(key="k")), Replay)


async def test_the_cap_turns_newcomers_away(start, store_server):
    """G10, B60: over all replicas, `LimitReached` with a time to wait and no key taken; retries of what runs join."""
    one, other = await start(max_running=2), await start(max_running=2)
    held = [await Held.granted_to(one, ask(name, key=name)) for name in ("a", "b")]
    with pytest.raises(LimitReached) as refused:
        await run(other, ask("c", key="c"))
    assert refused.value.retry_after_s >= 1
    joining = asyncio.create_task(run(other, ask("a", key="a")))
    for each in held:
        await each.end()
    assert isinstance(await joining, Replay)
    await run(other, ask("c", key="c"))


async def test_the_cap_counts_leases_not_ends(start, store_server):
    """G10, B53: turns that end in whatever way, and turns whose replica died, use up no slot."""
    coordinator = await start(max_running=3)
    for number in range(30):
        task = asyncio.create_task(run(coordinator, ask(f"s{number}")))
        await asyncio.sleep(0.001 * (number % 5))
        task.cancel()
        await asyncio.wait({task})
    await until(lambda: store_server.cli("ZCARD", RUNNING) == 0)
    dead = [await Held.granted_to(coordinator, ask(f"dead {number}")) for number in range(3)]
    with pytest.raises(LimitReached):
        await run(coordinator, ask())
    for each in dead:
        end_lease(store_server, each.turn.id)
    await run(coordinator, ask())
    for each in dead:
        each.task.cancel()
    await asyncio.wait([each.task for each in dead])


async def test_a_retry_joins_the_running_turn(start, store_server):
    """F3: on any replica, many at once, all get the one answer; another request under the key is a conflict."""
    one, other = await start(), await start()
    held = await Held.granted_to(one, ask(key="k"))
    joining = [asyncio.create_task(run(coordinator, ask(key="k"))) for coordinator in (one, other) * 10]
    with pytest.raises(AdmissionConflict):
        await run(other, ask(key="k", text="other"))
    await asyncio.wait(joining, timeout=0.1)
    assert not any(task.done() for task in joining)
    await held.end()
    replays = await asyncio.gather(*joining)
    assert all(isinstance(replay, Replay) and replay.turn.result == answer() for replay in replays)


async def test_joiners_do_not_hurry(start, store_server, stop):
    """F3: whatever messages reach one that joined, it looks at the turn a few times a second at most."""
    coordinator = await start()
    held = await Held.granted_to(coordinator, ask(key="k"))
    looks: list[str] = []
    stop.watching("turn_status", lambda *args: looks.append(args[1]))
    joining = Held(coordinator, ask(key="k"))
    await until(lambda: bool(looks))
    channel = f"coord1:replica:{coordinator.settings.replica}"
    for _ in range(20):
        store_server.cli("PUBLISH", channel, f"wake {joining.turn.id}")
    await asyncio.sleep(0.3)
    assert len(looks) < 5
    await held.end()
    await joining.task


async def test_joiners_of_a_turn_that_left_nothing_ask_for_themselves(start, store_server):
    """F6: however often the turn that they joined turns out to be nothing, none is told that an answer was lost."""
    coordinator = await start()
    asking = [Held(coordinator, ask(key="k")) for _ in range(6)]
    nothing: list[Held] = []

    async def next_granted():
        await until(lambda: any(each.granted.is_set() for each in asking if each not in nothing))
        return next(each for each in asking if each.granted.is_set() and each not in nothing)

    for _ in range(4):
        held = await next_granted()
        await held.turn.refuse()
        held.task.cancel()
        nothing.append(held)
    await (await next_granted()).end()
    outcomes = await asyncio.gather(*(each.task for each in asking if each not in nothing))
    assert [isinstance(outcome, Replay) for outcome in outcomes].count(True) == 1


async def test_a_key_whose_turn_left_no_record_is_not_a_loop(start, store_server):
    """F7: the record is gone, by hand or by eviction, and the key still names it: told as expired, at once."""
    coordinator = await start()
    held = await Held.granted_to(coordinator, ask(key="k"))
    store_server.cli("DEL", f"coord1:{{default}}:turn:{held.turn.id}")
    with pytest.raises(IdempotencyExpired):
        await asyncio.wait_for(run(coordinator, ask(key="k")), 2)
    held.task.cancel()
    await asyncio.wait({held.task})


async def test_an_interrupted_turn_is_refused_or_run_again(start, store_server):
    """F5: `refuse` says that nobody knows; `rerun` runs it once more, once for all who ask, under a new fence."""
    refusing, running = await start(), await start(interrupted_turns="rerun")
    held = await Held.granted_to(refusing, ask(key="k"))
    end_lease(store_server, held.turn.id)
    for _ in range(2):
        with pytest.raises(UnknownExecution):
            await run(refusing, ask(key="k"))
    again = await asyncio.gather(*(run(running, ask(key="k"), f"run {n}") for n in range(5)))
    ran = [turn for turn in again if not isinstance(turn, Replay)]
    assert [turn.fence > held.turn.fence for turn in ran] == [True]
    assert len({turn.turn.result for turn in again if isinstance(turn, Replay)}) == 1
    assert isinstance(await run(refusing, ask(key="k")), Replay)
    held.task.cancel()
    await asyncio.wait({held.task})


async def test_a_turn_is_not_run_again_in_another_session(start, store_server):
    """F5: only while the session that the key was admitted to is still the current one."""
    coordinator = await start(interrupted_turns="rerun")
    opening = Implicit((b"", b"hi"))
    held = await Held.granted_to(coordinator, ask(opening, key="k"))
    end_lease(store_server, held.turn.id)
    await coordinator.delete_session(TENANT, held.turn.session_id)
    await run(coordinator, ask(opening))
    for _ in range(2):
        with pytest.raises((UnknownExecution, TurnCancelled)):
            await run(coordinator, ask(opening, key="k"))
    held.task.cancel()
    await asyncio.wait({held.task})


@pytest.mark.parametrize("explicit", [True, False])
async def test_a_session_that_ends_while_one_waits(start, store_server, explicit):
    """G4: the waiter is refused at once: not found when it named the session, else it moved on."""
    coordinator = await start(implicit_turns="exclusive", poll_ms=10_000, vouch_ms=30_000)
    address = "s" if explicit else Implicit((b"", b"hi"))
    held = await Held.granted_to(coordinator, ask(address))
    waiting = await Held.queued(coordinator, ask(address, key="k"), store_server)
    began = monotonic()
    await coordinator.delete_session(TENANT, held.turn.session_id, force=True)
    with pytest.raises(SessionNotFound if explicit else StaleGeneration):
        await waiting.task
    assert monotonic() - began < 1
    with pytest.raises(TurnCancelled):
        await held.task
    assert traces(store_server) == []


async def test_while_draining_nothing_new_is_admitted(start, store_server):
    """J6, F10: new ones, waiters and joiners are told at once, leaving no trace; replays are served, what runs ends."""
    coordinator, other = await start(poll_ms=10_000, vouch_ms=30_000), await start()
    await run(coordinator, ask("done", key="done"))
    held = await Held.granted_to(coordinator, ask(key="running"))
    elsewhere = await Held.granted_to(other, ask("elsewhere", key="elsewhere"))
    left = [
        await Held.queued(coordinator, ask(), store_server),
        Held(coordinator, ask(key="running")),
        Held(coordinator, ask("elsewhere", key="elsewhere")),
    ]
    await asyncio.sleep(0.05)
    began = monotonic()
    coordinator.drain()
    for each in [*left, Held(coordinator, ask("new", key="new"))]:
        with pytest.raises(Draining):
            await each.task
    assert monotonic() - began < 0.5
    assert isinstance(await run(coordinator, ask("done", key="done")), Replay)
    with pytest.raises(AdmissionConflict):
        await run(coordinator, ask("done", key="done", text="other"))
    await until(lambda: store_server.cli("ZCARD", WAITING) == 0)
    assert store_server.cli("KEYS", QUEUES) == []
    await held.end()
    await elsewhere.end()
    await asyncio.wait_for(run(other, ask()), 1)


async def test_a_waiter_that_was_just_told_its_place_leaves_no_trace_when_drained(start, store_server, stop):
    """J6: the answer to its first question arrives after the drain began."""
    coordinator = await start()
    held = await Held.granted_to(coordinator, ask())
    told, go_on = stop.slow("turn_begin")
    waiting = Held(coordinator, ask())
    await until(told.is_set)
    coordinator.drain()
    go_on.set()
    with pytest.raises(Draining):
        await waiting.task
    await until(lambda: store_server.cli("ZCARD", WAITING) == 0, timeout_s=1)
    await held.end()


async def test_a_grant_that_arrives_while_draining_is_taken_back(start, store_server, stop):
    """J6: nothing has started, so it may as well start elsewhere: its key is free."""
    coordinator, other = await start(), await start()
    told, go_on = stop.slow("turn_begin")
    asking = Held(coordinator, ask(key="k"))
    await until(told.is_set)
    coordinator.drain()
    go_on.set()
    with pytest.raises(Draining):
        await asking.task
    assert not isinstance(await run(other, ask(key="k")), Replay)


async def test_accepted_work_is_granted_though_an_answer_was_lost(start, store_server, stop):
    """I4, J2: nobody could be told to send it again; it asks until it hears, and has one grant."""
    coordinator = await start(poll_ms=100)
    view = await coordinator.accept(ask(stored=True))
    stop.losing("turn_begin", times=2)
    async with coordinator.resume(TENANT, view) as turn:
        assert turn.id == view.turn
        await turn.finish(answer())
    assert state_of(store_server, view.turn) == "completed"


async def test_accepted_work_is_left_alone_by_a_replica_that_leaves(start, store_server):
    """J6, I4: while draining it claims nothing: it could only keep the work from those who would start it."""
    leaving, other = await start(vouch_ms=200), await start(vouch_ms=200)
    view = await leaving.accept(ask(stored=True))
    leaving.drain()
    await until(lambda: (store_server.cli("ZCOUNT", "coord1:{default}:accepted", "-inf", now_ms(store_server))) == 1)
    assert await leaving.claim(TENANT) == []
    assert [claimed.turn for claimed in await other.claim(TENANT)] == [view.turn]


def now_ms(server):
    """The store's time."""
    seconds, micros = server.cli("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def test_accepted_work_that_started_meanwhile_is_asked_to_stop(start, store_server):
    """G7, G8: it is not declared over under the hands of who runs it: what runs is asked to stop."""
    coordinator = await start()
    view = await coordinator.accept(ask(stored=True))
    async with coordinator.resume(TENANT, view) as turn:
        assert await coordinator.give_up(TENANT, view) is False
        assert await coordinator.give_up(TENANT, view, answer("failed")) is False
        assert state_of(store_server, view.turn) == "running"
        await turn.finish(answer())
    assert state_of(store_server, view.turn) == "completed"
