"""A host that uses the library, and short ways to have it say something."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from coordinator import Address, Coordinator, Declared, Result, Turn, TurnRequest
from coordinator.identity import target_of
from coordinator.keys import TenantKeys
from tests.support.servers import StoreServer

TENANT = "acme"
HOME = Declared("telegram", "chat-42")
REASONS = ("session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired")
HARMLESS = ("compression", "agent_close", "branched", "ws_orphan_reap", "some words of a host's own")
"""Ends that are no boundary."""
HOUR_MS = 3_600_000
ANSWER = Result(status=200, body=b"{}")


def asked(address: Address = HOME, *, tenant: str = TENANT, **options: Any) -> TurnRequest:
    """The request for a turn."""
    return TurnRequest(tenant=tenant, address=address, route="test", **options)


@dataclass(frozen=True)
class Said:
    """What a turn was."""

    session_id: str
    generation: int
    scope: str
    fence: int


@dataclass(frozen=True)
class Host:
    """One replica, with a way into its store."""

    coordinator: Coordinator
    server: StoreServer

    async def say(self, address: Address = HOME, **options: Any) -> Said:
        """One whole turn."""
        async with self.coordinator.turn(asked(address, **options)) as turn:
            await turn.finish(ANSWER, messages=[b"{}"])
            return said(turn)

    @contextlib.asynccontextmanager
    async def saying(self, address: Address = HOME, **options: Any) -> AsyncIterator[asyncio.Task[Said]]:
        """A turn that runs in a task of its own until the block ends, and finishes then."""
        granted, over = asyncio.Event(), asyncio.Event()

        async def hold() -> Said:
            async with self.coordinator.turn(asked(address, **options)) as turn:
                granted.set()
                await over.wait()
                await turn.finish(ANSWER, messages=[b"{}"])
                return said(turn)

        holding = asyncio.create_task(hold())
        asking = asyncio.create_task(granted.wait())
        await asyncio.wait({holding, asking}, return_when=asyncio.FIRST_COMPLETED)
        asking.cancel()
        yield holding
        over.set()
        await asyncio.wait({holding})

    async def rest(self, ms: int, address: Address = HOME, *, tenant: str = TENANT) -> None:
        """Lets a conversation rest, as time would; a negative time is a clock that stepped back."""
        seconds, micros = await asyncio.to_thread(self.server.cli, "TIME")
        key = TenantKeys(tenant).conversation(target_of(tenant, address).cid)
        at_ms = int(seconds) * 1000 + int(micros) // 1000 - ms
        assert await asyncio.to_thread(self.server.cli, "HSET", key, "active_ms", at_ms) == 0

    async def waiting(self, count: int, address: Address = HOME, *, tenant: str = TENANT) -> bool:
        """Whether so many stand in line."""
        key = TenantKeys(tenant).queue(target_of(tenant, address).cid)
        return bool(await asyncio.to_thread(self.server.cli, "ZCARD", key) == count)


def said(turn: Turn) -> Said:
    """The facts of a turn that is held."""
    return Said(turn.session_id, turn.grant.generation, turn.scope, turn.fence)
