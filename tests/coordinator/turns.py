"""Short ways to have a coordinator run turns, and to get between it and its store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

import pytest

from coordinator import Coordinator, Explicit, Replay, Result, StoreUnavailable, Turn, TurnRequest
from coordinator.identity import Address
from coordinator.steps import Steps
from tests.support.servers import StoreServer
from tests.support.waiting import until

TENANT = "default"
RUNNING = f"coord1:{{{TENANT}}}:running"
WAITING = f"coord1:{{{TENANT}}}:waiting"
CANCELLING = f"coord1:{{{TENANT}}}:cancelling"


def ask(address: Address | str = "s", *, key: str | None = None, text: str = "hello", **options: Any) -> TurnRequest:
    """A request for a turn; a string is a session's id, and `text` is what two requests differ by."""
    address = Explicit(address) if isinstance(address, str) else address
    return TurnRequest(tenant=TENANT, address=address, route="chat", fingerprint=text, idempotency_key=key, **options)


def answer(text: str = "hello") -> Result:
    """An answer."""
    return Result(status=200, body=text.encode())


async def run(coordinator: Coordinator, request: TurnRequest, text: str = "hello") -> Replay | Turn:
    """One whole turn; the replay when it is one."""
    async with coordinator.turn(request) as turn:
        if turn.replay:
            return turn.replay
        await turn.finish(answer(text), messages=[b'"%s"' % text.encode()])
    return turn


class Held:
    """A turn in a task of its own, which runs until `let_go`; `await held.task` gives what became of it."""

    def __init__(self, coordinator: Coordinator, request: TurnRequest) -> None:
        self._go = asyncio.Event()
        self.turn = coordinator.turn(request)
        self.granted = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    @classmethod
    async def granted_to(cls, coordinator: Coordinator, request: TurnRequest) -> Self:
        """A turn that is granted."""
        held = cls(coordinator, request)
        waiting = asyncio.create_task(held.granted.wait())
        await asyncio.wait({waiting, held.task}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            held.task.result()
        return held

    @classmethod
    async def queued(cls, coordinator: Coordinator, request: TurnRequest, server: StoreServer, count: int = 1) -> Self:
        """A turn that waits; `count` is how many of the tenant's do so then."""
        held = cls(coordinator, request)
        await until(lambda: server.cli("ZCARD", WAITING) == count, what=f"{count} waiters")
        return held

    def let_go(self) -> None:
        """Has it finish."""
        self._go.set()

    async def end(self) -> Replay | Turn:
        """Has it finish, and waits for that."""
        self.let_go()
        return await self.task

    async def _run(self) -> Replay | Turn:
        async with self.turn as turn:
            self.granted.set()
            if turn.replay:
                return turn.replay
            await self._go.wait()
            await turn.finish(answer(), messages=[b'"hello"'])
        return turn


def end_lease(server: StoreServer, turn: str) -> None:
    """Lets a turn's lease end, as it does some time after its replica died."""
    assert server.cli("ZADD", RUNNING, "XX", "CH", 1, turn) == 1


def lease_left_ms(server: StoreServer, turn: str) -> int | None:
    """What is left of a turn's lease; None when it has none."""
    score = server.cli("ZSCORE", RUNNING, turn)
    seconds, micros = server.cli("TIME")
    return None if score is None else int(float(score)) - int(seconds) * 1000 - int(micros) // 1000


def state_of(server: StoreServer, turn: str) -> str | None:
    """The state in a turn's record, as it is."""
    state = server.cli("HGET", f"coord1:{{{TENANT}}}:turn:{turn}", "state")
    return None if state is None else state.decode()


class Stop:
    """Gets between all coordinators and one of their steps, in whichever thread it is called."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def failing(self, step: str, error: Exception | None = None, *, times: int | None = None) -> threading.Event:
        """It fails without reaching the store, so many times or until the event is set."""
        real, over, left = getattr(Steps, step), threading.Event(), times

        async def fail(*args: Any, **options: Any) -> Any:
            nonlocal left
            if over.is_set() or left == 0:
                return await real(*args, **options)
            left = None if left is None else left - 1
            raise error or StoreUnavailable("as the test wants it")

        self._patch.setattr(Steps, step, fail)
        return over

    def slow(self, step: str, *, before: bool = False) -> tuple[threading.Event, threading.Event]:
        """It reaches the store, and its answer arrives when the second event is set; with `before` it is held back on
        the way there. The first event tells that one is held."""
        real, held, go = getattr(Steps, step), threading.Event(), threading.Event()

        async def hold() -> None:
            held.set()
            while not go.is_set():
                await asyncio.sleep(0.002)

        async def wait(*args: Any, **options: Any) -> Any:
            if before:
                await hold()
            reply = await real(*args, **options)
            if not before:
                await hold()
            return reply

        self._patch.setattr(Steps, step, wait)
        return held, go

    def late(self, step: str, seconds: float) -> None:
        """Its answers take that much longer."""
        real = getattr(Steps, step)

        async def wait(*args: Any, **options: Any) -> Any:
            reply = await real(*args, **options)
            await asyncio.sleep(seconds)
            return reply

        self._patch.setattr(Steps, step, wait)

    def losing(self, step: str, *, times: int = 1) -> None:
        """It reaches the store, and its next answers are lost."""
        real, left = getattr(Steps, step), times

        async def lose(*args: Any, **options: Any) -> Any:
            nonlocal left
            reply = await real(*args, **options)
            if left == 0:
                return reply
            left -= 1
            raise StoreUnavailable("the answer is lost, as the test wants it")

        self._patch.setattr(Steps, step, lose)

    def watching(self, step: str, see: Callable[..., object]) -> None:
        """Everything goes on as it is; `see` is told the arguments."""
        real = getattr(Steps, step)

        async def watch(steps: Steps, *args: Any, **options: Any) -> Any:
            see(*args, **options)
            return await real(steps, *args, **options)

        self._patch.setattr(Steps, step, watch)
