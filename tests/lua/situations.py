"""Situations in which scripts of turns, and those that delete and erase, do something, and the call that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from coordinator.identity import Target
from tests.lua import session_situations
from tests.lua.calls import Call, call_of
from tests.lua.stage import CHOSEN, DECLARED, HOUR_MS, KEY, MINTED, OPENING, T1, T2, T3, T4, Stage


async def crowded(stage: Stage, target: Target = CHOSEN) -> int:
    """A conversation with a transcript, a keyed turn T1 that runs, and T2 waiting on r2; the fence of T1."""
    await stage.used(target, turn=T4, messages=[b"m"])
    grant = await stage.keyed_grant(T1, target)
    await stage.append(grant.fence, [b"1"], target=target)
    await stage.begin(T2, target, by="r2")
    return grant.fence


async def begin_new(stage: Stage) -> Call:
    """The first turn of an opening, with a key."""
    return await call_of(stage, lambda on: on.keyed(T1, OPENING, exclusive=False, nonce=16 * "a"))


async def begin_capped(stage: Stage) -> Call:
    """The same where the tenant has a cap."""
    return await call_of(stage, lambda on: on.keyed(T1, OPENING, settings={"max_running": 5}, nonce=16 * "a"))


async def begin_next(stage: Stage) -> Call:
    """The head of a queue with a dead one behind it takes over from a dead turn."""
    await crowded(stage)
    await stage.begin(T3)
    await stage.end_lease(T1)
    await stage.end_vouch(T3)
    return await call_of(stage, lambda on: on.begin(T2, by="r2", digest=32 * "e", fingerprint="f2"))


async def begin_queued(stage: Stage) -> Call:
    """A newcomer waits behind a live turn and a live waiter, and a dead waiter goes."""
    await crowded(stage)
    await stage.begin(T4[:-1] + "5")
    await stage.end_vouch(T4[:-1] + "5")
    return await call_of(stage, lambda on: on.begin(T3, digest=32 * "e", fingerprint="f2"))


async def begin_refused(stage: Stage) -> Call:
    """A waiter with a key that was taken meanwhile leaves."""
    await crowded(stage)
    await stage.begin(T3, by="r2")
    return await call_of(stage, lambda on: on.keyed(T2, by="r2"))


async def begin_known(stage: Stage) -> Call:
    """A turn that was granted asks again."""
    await crowded(stage)
    return await call_of(stage, lambda on: on.keyed(T1))


async def begin_interrupting(stage: Stage) -> Call:
    """A newcomer asks the running turn to stop."""
    await crowded(stage)
    return await call_of(stage, lambda on: on.begin(T3, policy="interrupt"))


async def begin_after_idling(stage: Stage) -> Call:
    """A declared conversation that rested too long, with a dead turn and a dead waiter."""
    await crowded(stage, DECLARED)
    await stage.end_lease(T1)
    await stage.end_vouch(T2)
    await stage.rest(DECLARED, HOUR_MS)
    return await call_of(stage, lambda on: on.begin(T3, DECLARED, settings={"idle_ms": HOUR_MS // 2}))


async def begin_after_midnight(stage: Stage) -> Call:
    """The same, past the time of day at which it begins anew."""
    await stage.used(DECLARED)
    await stage.rest(DECLARED, HOUR_MS)
    daily = f"{await stage.now_ms() - 60_000},{await stage.now_ms() + HOUR_MS}"
    return await call_of(stage, lambda on: on.begin(T3, DECLARED, daily=daily))


async def begin_reopened(stage: Stage) -> Call:
    """The first turn after a deletion."""
    first = await stage.used(OPENING)
    await stage.delete(Target(OPENING.cid, first.session_id))
    return await call_of(stage, lambda on: on.keyed(T2, OPENING))


async def status_running(stage: Stage) -> Call:
    """A look at a live turn."""
    await crowded(stage)
    return await call_of(stage, lambda on: on.status(T1, digest=KEY))


async def status_dead(stage: Stage) -> Call:
    """A look at a dead turn."""
    await crowded(stage)
    await stage.end_lease(T1)
    return await call_of(stage, lambda on: on.status(T1, digest=KEY))


async def renew(stage: Stage) -> Call:
    """A live turn, one that was asked to stop, and one that is lost."""
    await crowded(stage)
    await stage.granted(T3, MINTED)
    await stage.client.sadd(stage.keys.cancelling, T3)
    return await call_of(stage, lambda on: on.renew(T1, T3, T4))


async def cancel(stage: Stage) -> Call:
    """A live turn is asked to stop."""
    await crowded(stage)
    return await call_of(stage, lambda on: on.cancel(CHOSEN))


async def begin_accepted(stage: Stage) -> Call:
    """Work is accepted in a conversation in use."""
    await crowded(stage)
    return await call_of(
        stage, lambda on: on.begin(T3, digest=32 * "e", fingerprint="f2", request=b"work", keep_ms=HOUR_MS, about=b"a")
    )


async def begin_resumed(stage: Stage) -> Call:
    """Accepted work is granted."""
    await stage.keyed(T1, OPENING, request=b"work")
    return await call_of(stage, lambda on: on.keyed(T1, OPENING, length=0))


async def begin_resumed_in_line(stage: Stage) -> Call:
    """Accepted work waits."""
    await crowded(stage)
    await stage.accepted(T3)
    return await call_of(stage, lambda on: on.begin(T3))


async def claim(stage: Stage) -> Call:
    """Accepted work that nobody vouches for."""
    await stage.accepted(T1)
    await stage.end_acceptance(T1)
    return await call_of(stage, lambda on: on.claim(T1))


async def hide_keyed(stage: Stage) -> Call:
    """An answer under a key."""
    grant = await stage.keyed_grant(T1)
    await stage.finish(grant.fence, digest=KEY, kept="events", events=[b"1"])
    return await call_of(stage, lambda on: on.hide(T1))


async def hide_unkeyed(stage: Stage) -> Call:
    """An answer without one."""
    await stage.used()
    return await call_of(stage, lambda on: on.hide(T1))


async def append(stage: Stage) -> Call:
    """Two events, one of which is there already."""
    fence = await crowded(stage)
    return await call_of(stage, lambda on: on.append(fence, [b"1", b"2"]))


async def finish_with_log(stage: Stage) -> Call:
    """A commit with events and messages."""
    fence = await crowded(stage)
    return await call_of(
        stage, lambda on: on.finish(fence, digest=KEY, kept="events", first=2, events=[b"2"], messages=[b"m1"])
    )


async def finish_with_body(stage: Stage) -> Call:
    """A commit that drops the log, under a key that is kept for ever."""
    fence = await crowded(stage)
    return await call_of(stage, lambda on: on.finish(fence, digest=KEY, messages=[b"m1"], settings={"key_ttl_ms": 0}))


async def abandon_refused(stage: Stage) -> Call:
    """A refusal that frees the key."""
    fence = await crowded(stage)
    return await call_of(stage, lambda on: on.abandon(fence, "refused", digest=KEY))


async def abandon_failed(stage: Stage) -> Call:
    """An end that keeps the key."""
    fence = await crowded(stage)
    return await call_of(stage, lambda on: on.abandon(fence, "failed", digest=KEY))


async def abandon_accepted(stage: Stage) -> Call:
    """Accepted work that waits is given up."""
    await crowded(stage)
    await stage.accepted(T3)
    await stage.begin(T3)
    return await call_of(stage, lambda on: on.abandon(None, "cancelled", turn=T3))


async def abandon_waiting(stage: Stage) -> Call:
    """A waiter leaves."""
    await crowded(stage)
    await stage.begin(T3, by="r2")
    return await call_of(stage, lambda on: on.abandon(None, turn=T2, by="r2"))


async def delete_idle(stage: Stage) -> Call:
    """A session that nobody uses."""
    first = await stage.used(OPENING, messages=[b"m"])
    return await call_of(stage, lambda on: on.delete(Target(OPENING.cid, first.session_id)))


async def delete_forced(stage: Stage) -> Call:
    """A session in full use, with a dead waiter."""
    await crowded(stage)
    await stage.begin(T3)
    await stage.end_vouch(T3)
    return await call_of(stage, lambda on: on.delete(force=True))


async def delete_busy(stage: Stage) -> Call:
    """A session in full use, not forced."""
    await crowded(stage)
    return await call_of(stage, lambda on: on.delete())


async def delete_again(stage: Stage) -> Call:
    """A deletion that is sent once more."""
    await crowded(stage)
    await stage.delete(force=True)
    return await call_of(stage, lambda on: on.delete(force=True))


async def _erase(stage: Stage, *, receipts: bool) -> Call:
    fence = await crowded(stage)
    await stage.finish(fence, digest=KEY, kept="events", first=2, events=[b"2"])
    await stage.delete(force=True, receipts=receipts)
    return await call_of(stage, lambda on: on.erase(CHOSEN, T1, T4, receipts=receipts))


async def erase_keeping_receipts(stage: Stage) -> Call:
    """A turn with a key and one without."""
    return await _erase(stage, receipts=False)


async def erase_all(stage: Stage) -> Call:
    """The same, receipts too."""
    return await _erase(stage, receipts=True)


SITUATIONS: dict[str, Callable[[Stage], Awaitable[Call]]] = {
    "turn_begin-new": begin_new,
    "turn_begin-capped": begin_capped,
    "turn_begin-next": begin_next,
    "turn_begin-queued": begin_queued,
    "turn_begin-refused": begin_refused,
    "turn_begin-known": begin_known,
    "turn_begin-reopened": begin_reopened,
    "turn_begin-interrupting": begin_interrupting,
    "turn_begin-accepted": begin_accepted,
    "turn_begin-resumed": begin_resumed,
    "turn_begin-resumed in line": begin_resumed_in_line,
    "turn_begin-idle": begin_after_idling,
    "turn_begin-daily": begin_after_midnight,
    "turn_status-running": status_running,
    "turn_status-dead": status_dead,
    "turn_renew": renew,
    "run_claim": claim,
    "turn_hide-keyed": hide_keyed,
    "turn_hide-unkeyed": hide_unkeyed,
    "turn_cancel": cancel,
    "turn_append": append,
    "turn_finish-log": finish_with_log,
    "turn_finish-body": finish_with_body,
    "turn_abandon-refused": abandon_refused,
    "turn_abandon-failed": abandon_failed,
    "turn_abandon-waiting": abandon_waiting,
    "turn_abandon-accepted": abandon_accepted,
    "session_delete-idle": delete_idle,
    "session_delete-forced": delete_forced,
    "session_delete-busy": delete_busy,
    "session_delete-again": delete_again,
    "session_erase-receipts": erase_keeping_receipts,
    "session_erase-all": erase_all,
    **session_situations.SITUATIONS,
}
"""By script and situation."""

NUMBERS = {
    "turn_begin": [("conversation", "generation"), ("conversation", "fence"), ("conversation", "arrivals")],
    "turn_begin-idle": [("conversation", "active_ms")],
    "turn_append": [("record", "events")],
    "turn_finish": [("record", "events"), ("conversation", "turns")],
    "session_open": [("conversation", "generation")],
    "session_fork-again": [("conversation", "forked")],
    "session_record-bound": [("conversation", "generation")],
    "session_reset": [("conversation", "generation")],
    "session_end-boundary": [("conversation", "generation")],
    "session_end-again": [("record", "bumped")],
}
"""Fields that a script reads as numbers, always or in one situation, by the names of their keys in its header."""
