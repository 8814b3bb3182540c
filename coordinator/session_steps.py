"""The atomic steps of sessions: opening, boundaries, and a host's own ids. See `steps` for those of turns."""

from collections.abc import Sequence
from typing import Any, NoReturn

from coordinator.errors import ScriptError
from coordinator.identity import Explicit, Target, new_nonce, record_digest, target_of
from coordinator.keys import MAILBOXES, TenantKeys
from coordinator.outcomes import Busy, HostSession, Relation, Reset, Word
from coordinator.scripts import load
from coordinator.settings import Settings
from coordinator.store import Store, StoreClock

# What no answer to anybody rests on: a renewal or an event lost with its primary costs what the lease costs anyway.
_LOOSELY = frozenset({"turn_renew", "turn_append", "session_erase", "prune"})


class StepRunner:
    """Runs scripts on one store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    async def clock(self, key: str) -> StoreClock:
        """The clock of the server that has the key, asked for its time unless a reply has told it already."""
        clock = self._store.clock(key)
        return clock if clock.known else await self.synchronise(key)

    async def synchronise(self, key: str) -> StoreClock:
        """The same, asked for its time now."""
        seconds, micros = await self._store.execute("TIME", at=key)
        clock = self._store.clock(key)
        clock.observe(int(seconds) * 1000 + int(micros) // 1000)
        return clock

    async def _run(self, name: str, keys: dict[str, Any], args: dict[str, Any], **options: Any) -> list[Any]:
        reply = await self._store.run(load(name), keys, args, loosely=name in _LOOSELY, **options)
        self._store.clock(next(key for key in keys.values() if key)).observe(reply[1])
        return reply


def unknown_reply(name: str, reply: list[Any]) -> NoReturn:
    """Raises: the script said what is not in its header."""
    raise ScriptError(f"{name} answered what is not in its header: {reply[:1]!r}")


class SessionSteps(StepRunner):
    """The scripts that open and end sessions."""

    def _retirement(self, keys: TenantKeys, cid: str) -> dict[str, str | None]:
        """The keys that a boundary touches."""
        return {
            "conversation": keys.conversation(cid),
            "live": keys.live(cid),
            "turns": keys.turns(cid),
            "leftovers": keys.leftovers(cid),
            "queue": keys.queue(cid),
            "messages": keys.messages(cid),
            "running": keys.running,
            "waiting": keys.waiting,
            "cancelling": keys.cancelling,
            "sessions": keys.sessions,
            "tombstones": keys.tombstones,
            "erasing": keys.erasing,
        }

    async def session_reset(
        self,
        tenant: str,
        target: Target,
        *,
        expected: str,
        reason: str,
        token: str,
        fingerprint: str,
        digest: str,
    ) -> Reset | Word:
        """Opens the conversation's next generation."""
        settings, keys = self._settings, TenantKeys(tenant)
        reply = await self._run(
            "session_reset",
            {
                **self._retirement(keys, target.cid),
                "idempotency": keys.idempotency(digest) if digest else None,
            },
            {
                "cid": target.cid,
                "named": target.named,
                "expected": expected,
                "reason": reason,
                "token": token,
                "fingerprint": fingerprint,
                "key_ms": settings.key_ttl_ms,
                "nonce": new_nonce(),
                "lease_ms": settings.lease_ms,
                "vouch_ms": settings.vouch_ms,
                "mailboxes": MAILBOXES,
            },
        )
        match reply:
            case [b"reset", _, generation, session, ended, said, turns]:
                return Reset(
                    generation=int(generation),
                    session_id=session.decode(),
                    ended_session_id=ended.decode() or None,
                    reason=said.decode(),
                    stopped=[turn.decode() for turn in turns],
                )
            case [b"conflict" | b"not_found" | b"stale" as word, _]:
                return Word(word.decode())
        unknown_reply("session_reset", reply)

    async def session_open(
        self, tenant: str, target: Target, *, history: str, source: str, token: str
    ) -> tuple[str, bool] | Word:
        """Opens a session without a turn. Returns its id, and whether it is new."""
        keys = TenantKeys(tenant)
        reply = await self._run(
            "session_open",
            {
                "conversation": keys.conversation(target.cid),
                "sessions": keys.sessions,
                "tombstones": keys.tombstones,
                "retired": keys.retired(target.retired_bucket),
            },
            {
                "cid": target.cid,
                "named": target.named,
                "nonce": new_nonce(),
                "history": history,
                "source": source,
                "retired_id": target.retired_id,
                "token": token,
            },
        )
        match reply:
            case [b"opened", _, session]:
                return session.decode(), True
            case [b"current", _, session]:
                return session.decode(), False
            case [b"not_found", _]:
                return Word("not_found")
        unknown_reply("session_open", reply)

    async def session_edit(
        self, tenant: str, target: Target, *, token: str, notes: bytes, messages: Sequence[bytes]
    ) -> int | Busy | Word:
        """Adds messages to a session's transcript, or replaces its notes. Returns the transcript's length."""
        keys, cid = TenantKeys(tenant), target.cid
        reply = await self._run(
            "session_edit",
            {
                "conversation": keys.conversation(cid),
                "messages": keys.messages(cid),
                "live": keys.live(cid),
                "running": keys.running,
            },
            {"session": target.named, "token": token, "notes": notes, "lease_ms": self._settings.lease_ms},
            tail=messages,
        )
        match reply:
            case [b"edited", _, length]:
                return int(length)
            case [b"not_found", _]:
                return Word("not_found")
            case [b"busy", _, holder, left_ms]:
                return Busy(holder.decode(), int(left_ms))
        unknown_reply("session_edit", reply)

    async def session_fork(
        self, tenant: str, origin: Target, cid: str, length: int | None = None
    ) -> tuple[str, int] | Word:
        """Opens a session that starts with a copy of another's transcript, or of its first messages. Returns its id and
        its message count."""
        keys = TenantKeys(tenant)
        reply = await self._run(
            "session_fork",
            {
                "origin": keys.conversation(origin.cid),
                "origin_messages": keys.messages(origin.cid),
                "conversation": keys.conversation(cid),
                "messages": keys.messages(cid),
                "sessions": keys.sessions,
                "tombstones": keys.tombstones,
            },
            {
                "named": origin.named,
                "cid": cid,
                "nonce": new_nonce(),
                "length": "" if length is None else length,
            },
        )
        match reply:
            case [b"forked", _, session, count]:
                return session.decode(), int(count)
            case [b"not_found", _]:
                return Word("not_found")
        unknown_reply("session_fork", reply)

    async def session_record(
        self,
        tenant: str,
        target: Target,
        *,
        source: str,
        key: str,
        cid: str,
        parent: str,
        relation: Relation,
    ) -> HostSession | Word:
        """Records a host's own session id. Returns what is recorded of it now."""
        keys, own = TenantKeys(tenant), record_digest(target.named)
        reply = await self._run(
            "session_record",
            {
                "record": keys.record(own),
                "parent": keys.record(record_digest(parent) if parent else own),
                "conversation": keys.conversation(cid or target.cid),
                "tombstones": keys.tombstones,
                "retired": keys.retired(target.retired_bucket),
            },
            {
                "source": source,
                "key": key,
                "cid": cid,
                "parent_id": parent,
                "relation": relation,
                "nonce": new_nonce(),
                "retired_id": target.retired_id,
                "keep_ms": self._settings.record_ttl_ms,
            },
        )
        match reply:
            case [b"recorded", _, *facts]:
                return host_session(target.named, facts)
            case [b"not_found", _]:
                return Word("not_found")
        unknown_reply("session_record", reply)

    async def session_end(
        self,
        tenant: str,
        target: Target,
        cid: str,
        *,
        reason: str,
        boundary: bool,
        token: str,
        over_accidents: bool,
        force: bool,
    ) -> tuple[bool, list[str]] | str | Busy | Word:
        """Ends a host's own session id, bound to that conversation. Returns whether the conversation moved on, and the
        turns that were live in it; the conversation that it was bound to meanwhile; or the word for nothing done:
        kept, unknown."""
        settings, keys = self._settings, TenantKeys(tenant)
        reply = await self._run(
            "session_end",
            {"record": keys.record(record_digest(target.named)), **self._retirement(keys, cid or target.cid)},
            {
                "cid": cid,
                "reason": reason,
                "boundary": int(boundary),
                "token": token,
                "nonce": new_nonce(),
                "keep_ms": settings.record_ttl_ms,
                "lease_ms": settings.lease_ms,
                "vouch_ms": settings.vouch_ms,
                "mailboxes": MAILBOXES,
                "over": "accidents" if over_accidents else "none",
                "force": int(force),
            },
        )
        match reply:
            case [b"ended", _, bumped, _, turns]:
                return bool(bumped), [turn.decode() for turn in turns]
            case [b"busy", _, holder, left_ms]:
                return Busy(holder.decode(), int(left_ms))
            case [b"changed", _, other]:
                return str(other.decode())
            case [b"kept", _, _]:
                return Word("kept")
            case [b"unknown", _]:
                return Word("unknown")
        unknown_reply("session_end", reply)

    async def session_nonce(self, tenant: str, session_id: str) -> str:
        """The nonce of the session under an id that a client chose, '' while it is not open. A plain read."""
        key = TenantKeys(tenant).conversation(target_of(tenant, Explicit(session_id)).cid)
        current, nonce = await self._store.execute("HMGET", key, "session", "nonce")
        return str(nonce.decode()) if current == session_id.encode() else ""

    async def host_session(self, tenant: str, session_id: str) -> HostSession | None:
        """What is recorded of a host's own session id, in one read; None when nothing is."""
        key = TenantKeys(tenant).record(record_digest(session_id))
        facts = await self._store.execute(
            "HMGET", key, "source", "key", "cid", "generation", "nonce", "relation", "ended"
        )
        return host_session(session_id, facts) if facts[0] is not None else None


def host_session(session_id: str, facts: list[bytes]) -> HostSession:
    """The value for the facts of a record, in the order that `session_record` tells them."""
    source, key, cid, generation, nonce, relation, ended = (fact.decode() for fact in facts)
    return HostSession(
        session_id=session_id,
        source=source,
        key=key or None,
        cid=cid,
        generation=int(generation),
        nonce=nonce,
        relation=relation,  # type: ignore[arg-type]  # only values of it are written
        ended=ended or None,
    )
