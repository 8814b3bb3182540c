"""For every script the situations in which it does something, and the call that does it, as the library makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from coordinator.identity import Target
from coordinator.scripts import Script, Value
from coordinator.steps import Steps
from coordinator.store import Store
from tests.lua.stage import CHOSEN, KEY, MINTED, OPENING, T1, T2, T3, T4, Stage


@dataclass(frozen=True)
class Call:
    """One call of a script, by names."""

    script: Script
    keys: Mapping[str, str | None]
    args: Mapping[str, Value]
    tail_keys: Sequence[str] = ()
    tail: Sequence[Value] = ()

    async def run(self, store: Store, **changed_args: Value) -> list[Any]:
        """Makes the call, with some arguments changed; the raw reply."""
        return await store.run(
            self.script, self.keys, {**self.args, **changed_args}, tail_keys=self.tail_keys, tail=self.tail
        )

    @property
    def all_keys(self) -> list[str]:
        """Every key it declares."""
        return [*(key for key in self.keys.values() if key is not None), *self.tail_keys]


class _Made(Exception):  # noqa: N818 - not an error: it carries the call out
    def __init__(self, call: Call) -> None:
        self.call = call


class _Recorder:
    """A store that answers plain commands and hands out script calls instead of making them."""

    def __init__(self, store: Store) -> None:
        self.execute = store.execute

    async def run(
        self,
        script: Script,
        keys: Mapping[str, str | None],
        args: Mapping[str, Value],
        *,
        tail_keys: Sequence[str] = (),
        tail: Sequence[Value] = (),
    ) -> list[Any]:
        raise _Made(Call(script, dict(keys), dict(args), tuple(tail_keys), tuple(tail)))


class _RecordingStage(Stage):
    def steps(self, by: str = "r1", **changes: Any) -> Steps:
        recorder = cast("Store", _Recorder(self.store))
        return Steps(recorder, replace(self.settings, replica=by, **changes))


async def call_of(stage: Stage, act: Callable[[Stage], Awaitable[object]]) -> Call:
    """The script call that the library makes for this, without making it."""
    try:
        await act(_RecordingStage(stage.store, stage.client))
    except _Made as made:
        return made.call
    raise AssertionError("no script was called")


async def crowded(stage: Stage) -> int:
    """A conversation with a transcript, a keyed turn T1 that runs, and T2 waiting on r2; the fence of T1."""
    await stage.used(turn=T4, messages=[b"m"])
    grant = await stage.keyed_grant(T1)
    await stage.append(grant.fence, [b"1"])
    await stage.begin(T2, by="r2")
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
    return await call_of(stage, lambda on: on.erase(CHOSEN, T1, T4))


async def erase_keeping_receipts(stage: Stage) -> Call:
    """A turn with a key and one without."""
    return await _erase(stage, receipts=False)


async def erase_all(stage: Stage) -> Call:
    """The same, receipts too."""
    return await _erase(stage, receipts=True)


async def prune(stage: Stage) -> Call:
    """A conversation in use, one with a dead turn and a dead waiter, and a retired one."""
    await crowded(stage)
    await stage.granted(T3, MINTED)
    await stage.begin(T4[:-1] + "6", MINTED)
    await stage.end_lease(T3)
    await stage.end_vouch(T4[:-1] + "6")
    retired = await stage.used(OPENING, turn=T4[:-1] + "7")
    await stage.delete(Target(OPENING.cid, retired.session_id))
    return await call_of(stage, lambda on: on.prune(CHOSEN, MINTED, OPENING))


SITUATIONS: dict[str, Callable[[Stage], Awaitable[Call]]] = {
    "turn_begin-new": begin_new,
    "turn_begin-capped": begin_capped,
    "turn_begin-next": begin_next,
    "turn_begin-queued": begin_queued,
    "turn_begin-refused": begin_refused,
    "turn_begin-known": begin_known,
    "turn_begin-reopened": begin_reopened,
    "turn_status-running": status_running,
    "turn_status-dead": status_dead,
    "turn_renew": renew,
    "turn_append": append,
    "turn_finish-log": finish_with_log,
    "turn_finish-body": finish_with_body,
    "turn_abandon-refused": abandon_refused,
    "turn_abandon-failed": abandon_failed,
    "turn_abandon-waiting": abandon_waiting,
    "session_delete-idle": delete_idle,
    "session_delete-forced": delete_forced,
    "session_delete-busy": delete_busy,
    "session_delete-again": delete_again,
    "session_erase-receipts": erase_keeping_receipts,
    "session_erase-all": erase_all,
    "prune": prune,
}
"""By script and situation."""

NUMBERS = {
    "turn_begin": [("conversation", "generation"), ("conversation", "fence"), ("conversation", "arrivals")],
    "turn_append": [("record", "events")],
    "turn_finish": [("record", "events"), ("conversation", "turns")],
}
"""Fields that a script reads as numbers, by the names of their keys in its header."""
