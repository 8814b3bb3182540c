"""Two replicas with turns in flight, and a model in plain Python of the conversations that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coordinator import Address, Coordinator, Daily, Declared, Settings
from tests.coordinator.hosting import ANSWER, HOUR_MS, Host, Said, asked, said
from tests.support.servers import StoreServer

_T = TypeVar("_T")


@dataclass
class Conversation:
    """What the model knows of one: which generation is current, and who is in it."""

    address: Address
    life: int = 0
    """How often nothing was left of it."""
    generation: int = 0
    """0: nothing is known of it, or nothing is left."""
    session_id: str | None = None
    """None: no turn has opened the session of this generation yet."""
    announced: str | None = None
    """The id that the last reset told."""
    rested_h: int = 0
    turns: list[Running] = field(default_factory=list)
    """Those that may still commit."""

    @property
    def place(self) -> tuple[Address, int, int]:
        """Where what is told now belongs: nothing that is told is ever told of another place."""
        return self.address, self.life, self.generation

    def due(self, replica: int) -> bool:
        """Whether the next turn that asks there passes a boundary: an hour's rest, or the time of day."""
        return isinstance(self.address, Declared) and bool(self.session_id) and self.rested_h > (12 if replica else 0)

    def move(self, announced: str | None = None) -> None:
        """A boundary: whoever runs is of the past."""
        self.generation += 1
        self.session_id, self.announced, self.rested_h = None, announced, 0
        self.turns.clear()

    def opened(self, session_id: str) -> None:
        """A turn was granted."""
        self.session_id, self.announced, self.rested_h = session_id, None, 0

    def pruned(self) -> None:
        """Retention passed it, with nothing young enough to stay."""
        if self.turns:
            return
        if isinstance(self.address, Declared) and self.session_id:
            self.move()
        elif not isinstance(self.address, Declared) or self.generation == 1:
            self.forget()

    def forget(self) -> None:
        """Nothing is left of it."""
        self.life += 1
        self.generation, self.session_id, self.announced, self.rested_h = 0, None, None, 0
        self.turns.clear()


@dataclass(eq=False)
class Running:
    """A turn in flight, in a task of its own."""

    address: Address
    replica: int
    told: Said
    over: asyncio.Event
    task: asyncio.Task[None]


class Replicas:
    """The first has an idle time of an hour, the second a daily boundary twelve hours ago."""

    def __init__(self, server: StoreServer) -> None:
        self.server = server
        self.flying: list[Running] = []
        self._runner = asyncio.Runner()
        self._stacks = [AsyncExitStack(), AsyncExitStack()]
        seconds, _ = server.cli("TIME")
        at = (int(seconds) // 60 - 12 * 60) % (24 * 60)
        self._policies: list[dict[str, Any]] = [
            {"idle_ms": HOUR_MS},
            {"daily": Daily.parse(f"{at // 60:02}:{at % 60:02}@UTC")},
        ]
        self.hosts = [self.run(self._open(number)) for number in (0, 1)]

    def run(self, doing: Coroutine[Any, Any, _T]) -> _T:
        """Has the loop do this, and whatever else is under way meanwhile."""
        return self._runner.run(doing)

    def begin(self, address: Address, replica: int) -> Running:
        """A turn that is granted, and stays under way."""
        turn = self.run(self._fly(address, replica))
        self.flying.append(turn)
        return turn

    def finish(self, turn: Running) -> None:
        """Lets it commit. Raises what its holder is told."""
        self.flying.remove(turn)
        turn.over.set()
        self.run(_result(turn.task))

    def restart(self, replica: int) -> list[Running]:
        """Ends a replica and starts another one; the turns that ended with it."""
        ending = [turn for turn in self.flying if turn.replica == replica]
        self.run(self._end(ending))
        self.run(self._stacks[replica].aclose())
        self._stacks[replica] = AsyncExitStack()
        self.hosts[replica] = self.run(self._open(replica))
        return ending

    def close(self) -> None:
        """Everything ends."""
        self.run(self._end(self.flying[:]))
        for stack in self._stacks:
            self.run(stack.aclose())
        self._runner.close()

    async def _open(self, number: int) -> Host:
        made = Settings(turn_policy="reject", patience_ms=10_000, **self._policies[number])
        opened = Coordinator.open(self.server.store_url, made)
        return Host(await self._stacks[number].enter_async_context(opened), self.server)

    async def _fly(self, address: Address, replica: int) -> Running:
        granted: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def hold() -> None:
            async with self.hosts[replica].coordinator.turn(asked(address)) as turn:
                granted.set_result(said(turn))
                await over.wait()
                await turn.finish(ANSWER)

        task = asyncio.create_task(hold())
        task.add_done_callback(lambda ended: granted.done() or granted.cancel())
        await asyncio.wait({granted})
        if granted.cancelled():
            task.result()
        return Running(address, replica, await granted, over, task)

    async def _end(self, turns: list[Running]) -> None:
        for turn in turns:
            self.flying.remove(turn)
            turn.task.cancel()
        await asyncio.gather(*(turn.task for turn in turns), return_exceptions=True)


async def _result(task: asyncio.Task[None]) -> None:
    await task
