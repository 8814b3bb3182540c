"""Noticing that a client has gone, also while nothing is being sent to it."""

import asyncio
import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from aiohttp import web

_LOOK_EVERY_S = 0.25  # a client's leaving reaches its upstream call well within a second


def is_gone(request: web.Request) -> bool:
    """Whether the request's connection is closed."""
    return request.transport is None or request.transport.is_closing()


class Disconnects:
    """Cancels the handlers of clients that have gone. One look at all connections serves every request."""

    def __init__(self) -> None:
        self._watched: dict[asyncio.Task[object], web.Request] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look(), name="disconnects")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @contextlib.contextmanager
    def cancelling(self, request: web.Request) -> Iterator[None]:
        """Cancels the running task when the request's client goes before the block ends and before `spare`."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler always runs in a task")
        self._watched[task] = request
        try:
            yield
        finally:
            self._watched.pop(task, None)

    def spare(self) -> None:
        """Leaves the running task alone from here on, whatever its client does."""
        if task := asyncio.current_task():
            self._watched.pop(task, None)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for task, request in list(self._watched.items()):
                if is_gone(request):
                    del self._watched[task]
                    task.cancel()
