"""Work that must be done although its caller has left: tracked, retried, and awaited at shutdown with a limit."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator.errors import StoreUnavailable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_RETRY_S = 0.25  # between tries while the store is away: soon enough to be unnoticed, rare enough to be harmless
_TOGETHER = 100  # duties tried at the same time, so that a long outage's backlog does not flood the store


class Background:
    """The tasks and duties of one coordinator."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._duties: list[tuple[float, Callable[[], Awaitable[object]]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._limit_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Runs it in a task that nobody's cancellation reaches. Await it through `asyncio.shield`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it sees it; nobody awaiting is no reason for a warning at exit

    def see_to(self, duty: Callable[[], Awaitable[object]], within_s: float) -> None:
        """Does it, again and again while the store is away, for at most that long: after that it is moot."""
        self._duties.append((monotonic() + within_s, duty))
        if self._worker is None or self._worker.done():
            self._worker = self.spawn(self._work())

    async def _work(self) -> None:
        while self._duties:
            duties, self._duties = self._duties[:_TOGETHER], self._duties[_TOGETHER:]
            left = [duty for duty in duties if duty[0] > monotonic()]
            answers = await asyncio.gather(*(duty() for _, duty in left), return_exceptions=True)
            again = []
            for duty, answer in zip(left, answers, strict=True):
                if isinstance(answer, StoreUnavailable):
                    again.append(duty)
                elif isinstance(answer, Exception):
                    _log.error("work left behind by a caller failed: %r", answer)
            self._duties = again + self._duties
            if again:
                await asyncio.sleep(_RETRY_S)


async def until_done(task: "asyncio.Task[_T]", limit_s: float) -> None:
    """Waits for a tracked task, at most that long, without its outcome and without passing a cancellation on to it."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(asyncio.shield(task), limit_s)
