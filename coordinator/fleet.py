"""The replicas of a store, as each of them tells: who is there, since when, how busy."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Self

from coordinator.errors import CoordinatorError
from coordinator.keys import MAILBOXES, REPLICAS
from coordinator.settings import Settings
from coordinator.steps import Steps
from coordinator.store import Store

_log = logging.getLogger(__name__)

_EVERY_S = 5
_FAREWELL_S = 0.5  # what a replica that leaves spends on saying so; it is forgotten by itself
_FORGET_MS = 20_000  # four heartbeats missed: gone


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One replica. Times are ms since the epoch, by the store's clock."""

    id: str
    host: str
    pid: int
    version: str
    started_ms: int
    seen_ms: int
    running: int
    """Turns running there at its last heartbeat."""


class Fleet:
    """Tells the store about this replica every few seconds, and about the others whoever asks."""

    def __init__(self, store: Store, steps: Steps, settings: Settings, running: Callable[[], int]) -> None:
        self._store = store
        self._steps = steps
        self._replica = settings.replica
        self._running = running
        self._started_ms = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="fleet")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(CoordinatorError):
            await self._store.execute("DEL", MAILBOXES + self._replica, patience_s=_FAREWELL_S)
            await self._store.execute("SREM", REPLICAS, self._replica, patience_s=_FAREWELL_S)

    async def replicas(self) -> list[ReplicaView]:
        """The replicas that have told of themselves lately, by name."""
        found = []
        for name in sorted(await self._store.execute("SMEMBERS", REPLICAS)):
            facts = await self._store.execute(
                "HMGET", MAILBOXES + name.decode(), "host", "pid", "version", "started_ms", "seen_ms", "running"
            )
            if facts[0] is None:
                await self._store.execute("SREM", REPLICAS, name)  # its next heartbeat puts it back
                continue
            host, pid, release, started_ms, seen_ms, running = (fact.decode() for fact in facts)
            found.append(
                ReplicaView(
                    id=name.decode(),
                    host=host,
                    pid=int(pid),
                    version=release,
                    started_ms=int(started_ms),
                    seen_ms=int(seen_ms),
                    running=int(running),
                )
            )
        return found

    async def _run(self) -> None:
        while True:
            try:
                await self._tell()
            except CoordinatorError as error:
                _log.debug("heartbeat put off: %s", error)
            await asyncio.sleep(_EVERY_S)

    async def _tell(self) -> None:
        key = MAILBOXES + self._replica
        now_ms = (await self._steps.synchronise(key)).now()
        self._started_ms = self._started_ms or now_ms
        await self._store.execute(
            "HSET", key, "host", socket.gethostname(), "pid", os.getpid(), "version", _version(),
            "started_ms", self._started_ms, "seen_ms", now_ms, "running", self._running(),
        )  # fmt: skip
        await self._store.execute("PEXPIRE", key, _FORGET_MS)
        await self._store.execute("SADD", REPLICAS, self._replica)


def _version() -> str:
    try:
        return version("session-coordinator")
    except PackageNotFoundError:
        return "unpackaged"
