"""Replicas on a store, and short ways to have them open, end, erase and record sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from coordinator.identity import Declared, Explicit, Target, new_nonce, target_of
from coordinator.outcomes import Busy, HostSession, Relation, Reset, Word
from coordinator.settings import Settings
from coordinator.steps import Steps
from coordinator.store import Store
from tests.lua.store_view import CHOSEN, TENANT, StoreView

DECLARED = target_of(TENANT, Declared("telegram", "chat-42"))
"""The conversation that a host declares."""
HOST = target_of(TENANT, Explicit("host-1"))
"""A host's own session id."""


def stage_settings(replica: str) -> Settings:
    """Working defaults, patient with a busy machine."""
    return Settings(replica=replica, patience_ms=10_000)


class SessionStage(StoreView):
    """Replicas on one store. Calls are `r1`'s."""

    def __init__(self, store: Store, client: Redis) -> None:
        super().__init__(store, client)
        self.settings = stage_settings("r1")

    def steps(self, by: str = "r1", **changes: Any) -> Steps:
        """The scripts as a replica with these settings calls them."""
        return Steps(self.store, replace(self.settings, replica=by, **changes))

    async def delete(
        self,
        target: Target = CHOSEN,
        *,
        generation: int = 1,
        token: str = "d1",
        force: bool = False,
        receipts: bool = False,
    ) -> list[str] | Busy | Word:
        """Retires the session that the target names."""
        return await self.steps().session_delete(
            TENANT, target, generation, token, force=force, receipts=receipts, nonce=new_nonce()
        )

    async def erase(self, target: Target = CHOSEN, *turns: str, receipts: bool = False) -> int:
        """Erases turns of retired sessions; how many are left."""
        return await self.steps().session_erase(TENANT, target.cid, turns, receipts=receipts)

    async def prune(self, *targets: Target, horizon_ms: int = 0) -> int:
        """Drops conversations; how many."""
        return await self.steps().prune(TENANT, horizon_ms, [target.cid for target in targets])

    async def reset(
        self,
        target: Target = DECLARED,
        *,
        expected: str = "",
        reason: str = "session_reset",
        token: str = "r1",
        fingerprint: str = "f1",
        digest: str = "",
        settings: dict[str, Any] | None = None,
    ) -> Reset | Word:
        """Opens the next generation."""
        return await self.steps(**settings or {}).session_reset(
            TENANT, target, expected=expected, reason=reason, token=token, fingerprint=fingerprint, digest=digest
        )

    async def open(
        self, target: Target = CHOSEN, *, history: str = "store", source: str = "api_server", token: str = "o1"
    ) -> tuple[str, bool] | Word:
        """Opens a session without a turn; its id, and whether it is new."""
        return await self.steps().session_open(TENANT, target, history=history, source=source, token=token)

    async def opened(self, target: Target = CHOSEN, **changes: str) -> str:
        """The id of a session that is there to be opened."""
        answer = await self.open(target, **changes)
        assert isinstance(answer, tuple)
        return answer[0]

    async def fork(self, origin: Target, cid: str, length: int | None = None) -> tuple[str, int] | Word:
        """Copies a session into a new one; its id, and how many messages it starts with."""
        return await self.steps().session_fork(TENANT, origin, cid, length)

    async def edit(
        self, *messages: bytes, target: Target = CHOSEN, token: str = "e1", notes: bytes = b""
    ) -> int | Busy | Word:
        """Adds messages to a transcript, or notes; how many messages it has."""
        return await self.steps().session_edit(TENANT, target, token=token, notes=notes, messages=messages)

    async def record(
        self,
        target: Target = HOST,
        *,
        key: str = "chat-42",
        source: str = "telegram",
        parent: str = "",
        relation: Relation = "none",
    ) -> HostSession | Word:
        """Records a host's id, bound to the conversation of (source, key); without a key to none."""
        cid = target_of(TENANT, Declared(source, key)).cid if key else ""
        return await self.steps().session_record(
            TENANT, target, source=source, key=key, cid=cid, parent=parent, relation=relation
        )

    async def recorded(self, target: Target = HOST, **changes: Any) -> HostSession:
        """The same, of an id that was not deleted."""
        answer = await self.record(target, **changes)
        assert isinstance(answer, HostSession)
        return answer

    async def end(
        self,
        target: Target = HOST,
        cid: str = DECLARED.cid,
        *,
        reason: str = "session_reset",
        boundary: bool = True,
        token: str = "e1",
        over_accidents: bool = False,
        force: bool = True,
    ) -> tuple[bool, list[str]] | str | Busy | Word:
        """Ends a host's id, bound to that conversation."""
        return await self.steps().session_end(
            TENANT,
            target,
            cid,
            reason=reason,
            boundary=boundary,
            token=token,
            over_accidents=over_accidents,
            force=force,
        )

    async def cancel(self, target: Target, turn: str = "") -> list[str] | Word:
        """Asks a session's turns to stop; which."""
        return await self.steps().turn_cancel(TENANT, target, turn)
