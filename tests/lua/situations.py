"""For every script the situations in which it does something, and the call that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from coordinator.identity import Target
from tests.lua import begin_situations, session_situations
from tests.lua.begin_situations import crowded
from tests.lua.calls import Call, call_of
from tests.lua.stage import CHOSEN, KEY, MINTED, OPENING, T1, T2, T3, T4, Stage


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
    **begin_situations.SITUATIONS,
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
