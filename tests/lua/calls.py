"""Script calls as the library makes them, caught before they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from coordinator.scripts import Script, Value
from coordinator.steps import Steps
from coordinator.store import Ready, Store
from tests.lua.stage import Stage


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


class _Made(Exception):
    def __init__(self, call: Call) -> None:
        self.call = call


class _Recorder:
    """A store that answers plain commands and hands out script calls instead of making them."""

    def __init__(self, store: Store) -> None:
        self.execute = store.execute
        self.clock = store.clock

    async def run(
        self,
        script: Script,
        keys: Mapping[str, str | None],
        args: Mapping[str, Value],
        *,
        tail_keys: Sequence[str] = (),
        tail: Sequence[Value] = (),
        loosely: bool = False,
        ready: Ready | None = None,
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
