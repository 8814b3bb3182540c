"""Situations in which scripts of sessions do something, and the call that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from coordinator.identity import Target
from tests.lua.calls import Call, call_of
from tests.lua.stage import CHOSEN, DECLARED, HOST, KEY, MINTED, OPENING, T1, T2, T3, T4, Stage

FORK = "m" + 24 * "f"
OTHER_TURNS = [T4[:-1] + digit for digit in "56789"]


async def in_use(stage: Stage) -> None:
    """A declared conversation that a host's id is bound to, with a transcript, a live turn, a waiter and a dead one."""
    await stage.used(DECLARED, turn=T4, messages=[b"m"])
    await stage.record(HOST)
    await stage.granted(T1, DECLARED)
    await stage.begin(T2, DECLARED, by="r2")
    await stage.begin(T3, DECLARED)
    await stage.end_vouch(T3)


async def open_new(stage: Stage) -> Call:
    """A session under the id that a client chose."""
    return await call_of(stage, lambda on: on.open(CHOSEN))


async def open_announced(stage: Stage) -> Call:
    """The session that a reset made room for, by its id."""
    await stage.used(DECLARED)
    reset = await stage.reset(DECLARED)
    return await call_of(stage, lambda on: on.open(Target(DECLARED.cid, getattr(reset, "session_id", ""))))


async def open_again(stage: Stage) -> Call:
    """An opening that is sent once more."""
    await stage.open(CHOSEN)
    return await call_of(stage, lambda on: on.open(CHOSEN))


async def edit(stage: Stage) -> Call:
    """A message and notes for a session with a dead turn."""
    await stage.granted(T1, CHOSEN)
    await stage.end_lease(T1)
    return await call_of(stage, lambda on: on.edit(b"m1", notes=b"n"))


async def edit_busy(stage: Stage) -> Call:
    """A message for a session with a live turn."""
    await stage.granted(T1, CHOSEN)
    return await call_of(stage, lambda on: on.edit(b"m1"))


async def fork(stage: Stage) -> Call:
    """A copy of a session with a transcript."""
    origin = await stage.used(OPENING, messages=[b"m1", b"m2"])
    return await call_of(stage, lambda on: on.fork(Target(OPENING.cid, origin.session_id), FORK, 1))


async def fork_again(stage: Stage) -> Call:
    """A fork that is sent once more."""
    call = await fork(stage)
    await call.run(stage.store)
    return call


async def record_new(stage: Stage) -> Call:
    """A host's id, bound to a conversation that nobody used yet."""
    return await call_of(stage, lambda on: on.record(HOST))


async def record_bound(stage: Stage) -> Call:
    """A host's id that was bound to none, bound to a conversation in use."""
    await stage.used(DECLARED)
    await stage.record(HOST, key="")
    return await call_of(stage, lambda on: on.record(HOST))


async def record_compressed(stage: Stage) -> Call:
    """A host's id that goes on after a compression."""
    await stage.record(HOST)
    return await call_of(stage, lambda on: on.record(CHOSEN, key="", parent=HOST.named, relation="compression"))


async def reset_in_use(stage: Stage) -> Call:
    """A boundary in a conversation in full use, under a key."""
    await in_use(stage)
    return await call_of(stage, lambda on: on.reset(DECLARED, digest=KEY))


async def reset_resting(stage: Stage) -> Call:
    """A second boundary, while the leftovers of the first are not erased."""
    await stage.used(DECLARED)
    await stage.reset(DECLARED)
    await stage.used(DECLARED, turn=T2)
    return await call_of(stage, lambda on: on.reset(DECLARED, token="r2"))


async def reset_again(stage: Stage) -> Call:
    """A boundary that is sent once more."""
    await in_use(stage)
    await stage.reset(DECLARED)
    return await call_of(stage, lambda on: on.reset(DECLARED))


async def end_with_boundary(stage: Stage) -> Call:
    """The end of a host's id that moves its conversation, in full use, on."""
    await in_use(stage)
    return await call_of(stage, lambda on: on.end(HOST))


async def end_without_boundary(stage: Stage) -> Call:
    """The end of a host's id that leaves its conversation alone."""
    await in_use(stage)
    return await call_of(stage, lambda on: on.end(HOST, reason="agent_close", boundary=False))


async def end_busy(stage: Stage) -> Call:
    """The same as the first, not forced."""
    await in_use(stage)
    return await call_of(stage, lambda on: on.end(HOST, force=False))


async def end_again(stage: Stage) -> Call:
    """An end that is sent once more."""
    await in_use(stage)
    await stage.end(HOST)
    return await call_of(stage, lambda on: on.end(HOST))


async def delete_recorded(stage: Stage) -> Call:
    """A host's id that was never a session here."""
    await stage.record(HOST, key="")
    return await call_of(stage, lambda on: on.delete(HOST))


async def prune(stage: Stage) -> Call:
    """Conversations: in use, with a dead turn and a dead waiter, retired, declared and open, declared and moved on."""
    await stage.granted(T1, CHOSEN)
    await stage.granted(T2, MINTED)
    await stage.begin(T3, MINTED)
    await stage.end_lease(T2)
    await stage.end_vouch(T3)
    retired = await stage.used(OPENING, turn=T4)
    await stage.delete(Target(OPENING.cid, retired.session_id))
    await stage.used(DECLARED, turn=OTHER_TURNS[0], messages=[b"m"])
    moved = Target("d" + 24 * "0")
    await stage.used(moved, turn=OTHER_TURNS[1])
    await stage.reset(moved)
    return await call_of(stage, lambda on: on.prune(CHOSEN, MINTED, OPENING, DECLARED, moved))


SITUATIONS: dict[str, Callable[[Stage], Awaitable[Call]]] = {
    "session_open-new": open_new,
    "session_open-announced": open_announced,
    "session_open-again": open_again,
    "session_edit": edit,
    "session_edit-busy": edit_busy,
    "session_fork": fork,
    "session_fork-again": fork_again,
    "session_record-new": record_new,
    "session_record-bound": record_bound,
    "session_record-compressed": record_compressed,
    "session_reset-in use": reset_in_use,
    "session_reset-resting": reset_resting,
    "session_reset-again": reset_again,
    "session_end-boundary": end_with_boundary,
    "session_end-none": end_without_boundary,
    "session_end-busy": end_busy,
    "session_end-again": end_again,
    "session_delete-recorded": delete_recorded,
    "prune": prune,
}
"""By script and situation."""
