"""Reading: sessions, transcripts, turns and event logs. Plain commands; nothing here decides anything."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from coordinator.errors import ScriptError, SessionNotFound
from coordinator.identity import Explicit, Target, session_scope, target_of
from coordinator.keys import TENANTS, TenantKeys
from coordinator.outcomes import LiveTurn, SessionView, TurnView
from coordinator.steps import Steps
from coordinator.store import Store

_PAGE = 200  # events or turns read at a time: bounded memory, and each call within its patience


class Views:
    """What a store holds, as values."""

    def __init__(self, store: Store, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    async def tenants(self) -> list[str]:
        """All tenants that have used the store."""
        return sorted(name.decode() for name in await self._store.execute("SMEMBERS", TENANTS))

    async def session(self, tenant: str, session_id: str) -> SessionView:
        """The session with this id.

        Raises:
            SessionNotFound: retired, unknown, or another tenant's.
        """
        target = target_of(tenant, Explicit(session_id))
        view = await self._conversation(tenant, target.cid)
        if view is None or view.id != session_id:
            raise SessionNotFound("no such session")
        return view

    async def sessions(self, tenant: str, *, limit: int = 20, offset: int = 0) -> list[SessionView]:
        """The tenant's sessions, the most recently active first."""
        keys = TenantKeys(tenant)
        cids = await self._store.execute("ZREVRANGE", keys.sessions, offset, offset + limit - 1)
        views = await asyncio.gather(*(self._conversation(tenant, cid.decode()) for cid in cids))
        return [view for view in views if view is not None]

    async def messages(self, tenant: str, session_id: str) -> list[bytes]:
        """The transcript, one JSON message an item; empty for a session whose client keeps the history."""
        target = target_of(tenant, Explicit(session_id))
        keys = TenantKeys(tenant)
        # Transcript first, id second: a session that is still current then was current when its transcript was read.
        messages: list[bytes] = await self._store.execute("LRANGE", keys.messages(target.cid), 0, -1)
        if await self._store.execute("HGET", keys.conversation(target.cid), "session") != session_id.encode():
            raise SessionNotFound("no such session")
        return messages

    async def turn(self, tenant: str, turn: str) -> TurnView | None:
        """The turn with this token, as everybody is told of it; None when there is no record."""
        cid, digest = await self._store.execute("HMGET", TenantKeys(tenant).turn(turn), "cid", "key")
        if cid is None:
            return None
        return await self._steps.turn_status(tenant, turn, cid.decode(), (digest or b"").decode())

    async def turns(self, tenant: str, target: Target) -> list[TurnView]:
        """The turns of a conversation that still have a record, in order of their start."""
        tokens = await self._store.execute("ZRANGE", TenantKeys(tenant).turns(target.cid), 0, -1)
        return await self._turns(tenant, tokens)

    async def running(self, tenant: str) -> list[TurnView]:
        """The tenant's running turns, in order of their start."""
        running = TenantKeys(tenant).running
        now = (await self._steps.synchronise(running)).now()
        tokens = await self._store.execute("ZRANGEBYSCORE", running, f"({now}", "+inf")
        return [view for view in await self._turns(tenant, tokens) if view.state == "running"]

    async def _turns(self, tenant: str, tokens: Sequence[bytes]) -> list[TurnView]:
        found: list[TurnView] = []
        for start in range(0, len(tokens), _PAGE):
            page = tokens[start : start + _PAGE]
            views = await asyncio.gather(*(self.turn(tenant, token.decode()) for token in page))
            found += (view for view in views if view is not None)
        return sorted(found, key=lambda view: (view.started_ms, view.fence))

    async def events(self, tenant: str, turn: str, after: int = 0) -> AsyncIterator[bytes]:
        """The events of a turn's log behind that many, in order."""
        async for _, event in self.numbered_events(tenant, turn, after - 1):
            yield event

    async def numbered_events(self, tenant: str, turn: str, after: int) -> AsyncIterator[tuple[int, bytes]]:
        """The events of a turn's log behind number `after`, each with its number; the first of a turn is 0."""
        after += 1  # an entry's id is one more than its event's number: a stream has no entry 0
        key = TenantKeys(tenant).events(turn)
        while True:
            entries = await self._store.execute("XRANGE", key, f"({after}", "+", "COUNT", _PAGE)
            for entry_id, fields in _entries(entries):
                after = int(entry_id.split(b"-")[0])
                yield after - 1, fields[1]
            if len(entries) < _PAGE:
                return

    async def _conversation(self, tenant: str, cid: str) -> SessionView | None:
        keys = TenantKeys(tenant)
        flat = await self._store.execute("HGETALL", keys.conversation(cid))
        fields: dict[bytes, bytes] = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        session_id = fields.get(b"session", b"").decode()
        if not session_id:
            return None
        try:
            return SessionView(
                id=session_id,
                cid=cid,
                kind=fields[b"kind"].decode(),
                source=fields[b"source"].decode(),
                history=fields[b"history"].decode(),
                generation=int(fields[b"generation"]),
                scope=session_scope(tenant, cid, session_id, int(fields[b"generation"]), fields[b"nonce"].decode()),
                turns=int(fields[b"turns"]),
                created_ms=int(fields[b"created_ms"]),
                active_ms=int(fields[b"active_ms"]),
                notes=fields.get(b"notes", b""),
                live=await self._live(keys, cid),
                queued=await self._store.execute("ZCARD", keys.queue(cid)),
            )
        except (KeyError, ValueError) as error:
            raise ScriptError(f"{keys.conversation(cid)} holds what this library does not write: {error!r}") from error

    async def _live(self, keys: TenantKeys, cid: str) -> list[LiveTurn]:
        tokens: Sequence[bytes] = await self._store.execute("SMEMBERS", keys.live(cid))
        if not tokens:
            return []
        clock = await self._steps.synchronise(keys.running)
        found = []
        for token in sorted(tokens):
            deadline: Any = await self._store.execute("ZSCORE", keys.running, token)
            left_ms = int(float(deadline or 0)) - clock.now()
            if left_ms > 0:
                facts = await self._store.execute("HMGET", keys.turn(token.decode()), "replica", "fence")
                found.append(
                    LiveTurn(
                        turn=token.decode(),
                        replica=(facts[0] or b"").decode(),
                        fence=int(facts[1] or 0),
                        expires_in_ms=left_ms,
                    )
                )
        return found


def _entries(reply: Any) -> list[tuple[bytes, list[bytes]]]:
    """Stream entries, whether the client left them flat or made dictionaries of them."""
    found = []
    for entry_id, fields in reply:
        flat = [part for pair in fields.items() for part in pair] if isinstance(fields, dict) else fields
        found.append((entry_id, flat))
    return found
