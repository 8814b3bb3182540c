"""Situations in which turn_begin does something, and the call that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from coordinator.identity import Target
from tests.lua.calls import Call, call_of
from tests.lua.stage import CHOSEN, DECLARED, HOUR_MS, OPENING, T1, T2, T3, T4, Stage


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
}
"""By script and situation."""
