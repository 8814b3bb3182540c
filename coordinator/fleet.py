"""The replicas of a store, as each of them tells: who is there, since when, how busy."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType, TracebackType
from typing import Self

from coordinator.errors import CoordinatorError, NewerSchema
from coordinator.keys import MAILBOXES, REPLICAS, SCHEMA, SETTINGS
from coordinator.settings import Settings
from coordinator.steps import Steps
from coordinator.store import Store

_log = logging.getLogger(__name__)

_EVERY_S = 5
_FAREWELL_S = 0.5  # what a replica that leaves spends on saying so; it is forgotten by itself
_FORGET_MS = 20_000  # four heartbeats missed: gone


AGREED: Mapping[str, Callable[[str], int | str]] = MappingProxyType({"lease_ms": int, "implicit_turns": str})
"""What must be one for all replicas, and how it is read back."""


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
        self._settings = settings
        self._replica = settings.replica
        self._own = replace(settings)
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

    async def agreed(self) -> dict[str, str]:
        """What the fleet has agreed on, as it stands in the store; empty before its first replica wrote it down."""
        flat = await self._store.execute("HGETALL", SETTINGS)
        pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
        return {name.decode(): value.decode() for name, value in pairs}

    def differences(self, agreed: dict[str, str]) -> dict[str, tuple[str, str]]:
        """Where this configuration differs: what is agreed, and what is configured here."""
        ours = {name: str(getattr(self._own, name)) for name in AGREED}
        return {name: (agreed[name], ours[name]) for name in AGREED if name in agreed and agreed[name] != ours[name]}

    async def agree(self, *, write: bool = True, founding: bool = False) -> None:
        """Takes over what is agreed. With `write`, what nobody has written down yet is agreed on as it is here; with
        `founding`, all of it is when no replica serves: there is nobody to differ from.

        Raises:
            NewerSchema: the store belongs to a newer version.
        """
        agreed = await self.agreed()
        if int(agreed.get("schema", SCHEMA)) > SCHEMA:
            raise NewerSchema(f"the store's schema is {agreed['schema']}, this version knows {SCHEMA}")
        if write:
            command = "HSET" if founding and not await self.replicas() else "HSETNX"
            ours = {name: str(getattr(self._own, name)) for name in AGREED} | {"schema": str(SCHEMA)}
            for name, value in ours.items():
                if command == "HSET" or name not in agreed:
                    await self._store.execute(command, SETTINGS, name, value)
            agreed = await self.agreed()
        for name, (theirs, here) in self.differences(agreed).items():
            if write and str(getattr(self._settings, name)) != theirs:
                _log.warning("%s is %s on all replicas; %s, as configured here, is not used", name, theirs, here)
        self._settings.agree(**{name: AGREED[name](agreed[name]) for name in AGREED if name in agreed})

    async def change(self, name: str, value: int | str) -> None:
        """Agrees on another value: every replica takes it over within seconds. Raises ValueError."""
        if name not in AGREED:
            raise ValueError(f"only {', '.join(AGREED)} are agreed on; the rest is each replica's own")
        changed = {name: value}
        replace(self._settings, **changed)  # type: ignore[arg-type]  # raises for a value that makes no sense
        await self._store.execute("HSET", SETTINGS, name, str(value))

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
            except NewerSchema as error:
                _log.error("%s: this replica must be upgraded", error)
            except CoordinatorError as error:
                _log.debug("heartbeat put off: %s", error)
            await asyncio.sleep(_EVERY_S)

    async def _tell(self) -> None:
        await self.agree()
        key = MAILBOXES + self._replica
        now_ms = (await self._steps.synchronise(key)).now()
        self._started_ms = self._started_ms or now_ms
        # Sent together: a process that is killed in between must not leave a record that never expires.
        await asyncio.gather(
            self._store.execute(
                "HSET", key, "host", socket.gethostname(), "pid", os.getpid(), "version", _version(),
                "started_ms", self._started_ms, "seen_ms", now_ms, "running", self._running(),
            ),
            self._store.execute("PEXPIRE", key, _FORGET_MS),
            self._store.execute("SADD", REPLICAS, self._replica),
        )  # fmt: skip


def _version() -> str:
    try:
        return version("session-coordinator")
    except PackageNotFoundError:
        return "unpackaged"
