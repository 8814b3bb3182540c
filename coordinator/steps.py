"""The atomic steps: one method a script, of the same name. Each names its keys, runs the script, and turns the reply
into a value; a reply word that is not known here is a `ScriptError`."""

from collections.abc import Sequence
from time import monotonic
from typing import Any, Literal, cast

from coordinator.identity import Target, new_nonce, record_digest
from coordinator.keys import MAILBOXES, TenantKeys
from coordinator.outcomes import (
    Accepted,
    Busy,
    Ended,
    Granted,
    Late,
    Queued,
    Result,
    Seen,
    TurnState,
    TurnView,
    Word,
)  # fmt: skip
from coordinator.session_steps import SessionSteps, unknown_reply
from coordinator.store import Ready

Begun = Granted | Accepted | Seen | Queued | Busy | Ended | Late | Word
Kept = Literal["events", "body", "none"]
_NO_RESULT = Result(status=0, body=b"", content_type="")


class Steps(SessionSteps):
    """All scripts on one store."""

    async def turn_begin(
        self,
        tenant: str,
        target: Target,
        turn: str,
        *,
        patience_s: float,
        expected: str,
        nonce: str,
        history: str,
        exclusive: bool,
        policy: str,
        route: str,
        fingerprint: str = "",
        digest: str = "",
        instead_of: str = "",
        source: str | None = None,
        daily: str = "",
        length: int | None = None,
        keep_ms: int | None = None,
        request: bytes = b"",
        about: bytes = b"",
        ready: Ready | None = None,
    ) -> Begun:
        """Asks for the turn, or to accept it with a request. After `patience_s` the store refuses to carry it out.
        `ready` is awaited before each time that it is sent."""
        settings, keys, cid = self._settings, TenantKeys(tenant), target.cid
        clock = await self.clock(keys.running)
        reply = await self._run(
            "turn_begin",
            {
                "conversation": keys.conversation(cid),
                "live": keys.live(cid),
                "turns": keys.turns(cid),
                "queue": keys.queue(cid),
                "messages": keys.messages(cid),
                "record": keys.turn(turn),
                "running": keys.running,
                "waiting": keys.waiting,
                "sessions": keys.sessions,
                "tombstones": keys.tombstones,
                "retired": keys.retired(target.retired_bucket),
                "leftovers": keys.leftovers(cid),
                "erasing": keys.erasing,
                "cancelling": keys.cancelling,
                "accepted": keys.accepted,
                "idempotency": keys.idempotency(digest) if digest else None,
            },
            {
                "turn": turn,
                "replica": settings.replica,
                "not_after_ms": clock.at(monotonic() + patience_s),
                "cid": cid,
                "named": target.named,
                "expected": expected,
                "nonce": nonce,
                "history": history,
                "source": settings.source if source is None else source,
                "exclusive": int(exclusive),
                "policy": policy,
                "queue_limit": settings.queue_limit,
                "max_running": settings.max_running,
                "lease_ms": settings.lease_ms,
                "vouch_ms": settings.vouch_ms,
                "record_ms": self._unended_ms(keep_ms or 0),
                "key_ms": settings.key_ttl_ms and settings.turn_limit_ms + settings.key_ttl_ms,
                "route": route,
                "fingerprint": fingerprint,
                "digest": digest,
                "retired_id": target.retired_id,
                "instead_of": instead_of,
                "mailboxes": MAILBOXES,
                "idle_ms": settings.idle_ms,
                "daily": daily,
                "length": "" if length is None else length,
                "request": request,
                "keep_ms": "" if keep_ms is None else keep_ms,
                "about": about,
            },
            ready=ready,
        )
        match reply:
            case [b"late", _]:
                return Late()
            case [b"granted", now_ms, session, generation, nonce_, fence, kept, messages]:
                return Granted(
                    session.decode(),
                    int(generation),
                    nonce_.decode(),
                    int(fence),
                    kept == b"store",
                    list(messages),
                    int(now_ms),
                )
            case [b"accepted", now_ms, session, generation, _]:
                return Accepted(session.decode(), int(generation), int(now_ms))
            case [b"ended", _, state]:
                return Ended(_state(state))
            case [b"seen", _, seen, seen_cid, session, state]:
                return Seen(seen.decode(), seen_cid.decode(), session.decode(), _state(state))
            case [b"queued", _, place, session, holder, left_ms]:
                return Queued(int(place), session.decode(), holder.decode(), int(left_ms))
            case [b"busy", _, holder, left_ms]:
                return Busy(holder.decode(), int(left_ms))
            case [b"conflict" | b"not_found" | b"moved" | b"branch" | b"full" | b"limited" as word, *_]:
                return Word(word.decode())
        unknown_reply("turn_begin", reply)

    async def key_record(self, tenant: str, digest: str) -> tuple[str, Seen] | None:
        """The fingerprint under a key, and the turn it names; None for a key that is free. A plain read."""
        facts = await self._store.execute(
            "HMGET", TenantKeys(tenant).idempotency(digest), "fingerprint", "turn", "cid", "session", "state"
        )
        if facts[1] is None:
            return None
        fingerprint, turn, cid, session, state = (fact.decode() for fact in facts)
        return fingerprint, Seen(turn, cid, session, cast("TurnState", state))

    async def conversation_end(self, tenant: str, cid: str) -> tuple[str, str]:
        """The conversation's current session id ('' for none), and why the one before it ended. A plain read."""
        facts = await self._store.execute("HMGET", TenantKeys(tenant).conversation(cid), "session", "ended_by")
        return (facts[0] or b"").decode(), (facts[1] or b"").decode()

    async def turn_status(self, tenant: str, turn: str, cid: str, digest: str) -> TurnView | None:
        """The turn as it is told to everybody from here on; None when there is no record of it."""
        settings, keys = self._settings, TenantKeys(tenant)
        reply = await self._run(
            "turn_status",
            {
                "record": keys.turn(turn),
                "events": keys.events(turn),
                "live": keys.live(cid),
                "turns": keys.turns(cid),
                "queue": keys.queue(cid),
                "running": keys.running,
                "waiting": keys.waiting,
                "cancelling": keys.cancelling,
                "conversation": keys.conversation(cid),
                "idempotency": keys.idempotency(digest) if digest else None,
            },
            {
                "turn": turn,
                "lease_ms": settings.lease_ms,
                "vouch_ms": settings.vouch_ms,
                "record_ms": self._record_ms(digest),
                "key_ms": settings.key_ttl_ms,
                "mailboxes": MAILBOXES,
            },
        )
        match reply:
            case [b"unknown", _]:
                return None
            case [b"turn", _, left_ms, flat]:
                return _turn_view(turn, int(left_ms), flat)
        unknown_reply("turn_status", reply)

    async def turn_renew(self, tenant: str, turns: Sequence[str]) -> tuple[set[str], set[str]]:
        """Renews the leases of at most 200 turns. Returns those that are lost and those that were asked to stop."""
        keys = TenantKeys(tenant)
        reply = await self._run(
            "turn_renew",
            {"running": keys.running, "cancelling": keys.cancelling},
            {"lease_ms": self._settings.lease_ms},
            tail=turns,
        )
        match reply:
            case [b"renewed", _, lost, cancelled]:
                return {turn.decode() for turn in lost}, {turn.decode() for turn in cancelled}
        unknown_reply("turn_renew", reply)

    async def turn_cancel(self, tenant: str, target: Target, turn: str = "") -> list[str] | Word:
        """Asks the session's live turns, or one of them, to stop. Returns those asked."""
        keys = TenantKeys(tenant)
        reply = await self._run(
            "turn_cancel",
            {
                "conversation": keys.conversation(target.cid),
                "live": keys.live(target.cid),
                "running": keys.running,
                "cancelling": keys.cancelling,
            },
            {"session": target.named, "turn": turn, "lease_ms": self._settings.lease_ms},
        )
        match reply:
            case [b"cancelling", _, turns]:
                return [asked.decode() for asked in turns]
            case [b"not_found", _]:
                return Word("not_found")
        unknown_reply("turn_cancel", reply)

    async def tell_stopping(self, tenant: str, turns: Sequence[str]) -> None:
        """Messages to the replicas that hold the turns, so that they look now. For speed: lost, it costs a renewal."""
        for turn in turns:
            replica = await self._store.execute("HGET", TenantKeys(tenant).turn(turn), "replica")
            if replica is not None:
                await self._store.execute("PUBLISH", MAILBOXES + replica.decode(), f"cancel {turn}")

    async def run_claim(self, tenant: str, turn: str) -> TurnView | None:
        """Takes over accepted work that nobody vouches for. Returns it; None when it is somebody's, or over."""
        keys = TenantKeys(tenant)
        reply = await self._run(
            "run_claim",
            {"record": keys.turn(turn), "accepted": keys.accepted},
            {"turn": turn, "replica": self._settings.replica, "vouch_ms": self._settings.vouch_ms},
        )
        match reply:
            case [b"claimed", _, flat]:
                return _turn_view(turn, 0, flat)
            case [b"taken" | b"gone", _]:
                return None
        unknown_reply("run_claim", reply)

    async def turn_hide(self, tenant: str, turn: str) -> bool:
        """Takes an ended turn's answer out of sight. Returns False while it has not ended."""
        keys = TenantKeys(tenant)
        reply = await self._run("turn_hide", {"record": keys.turn(turn), "events": keys.events(turn)}, {})
        match reply:
            case [b"hidden", _]:
                return True
            case [b"live", _]:
                return False
        unknown_reply("turn_hide", reply)

    async def turn_append(
        self, tenant: str, turn: str, cid: str, fence: int, first: int, events: Sequence[bytes]
    ) -> int | Ended | Word:
        """Appends events, the first of which has that sequence number. Returns the log's last sequence number."""
        keys = TenantKeys(tenant)
        reply = await self._run(
            "turn_append",
            {
                "conversation": keys.conversation(cid),
                "record": keys.turn(turn),
                "events": keys.events(turn),
                "running": keys.running,
                "cancelling": keys.cancelling,
            },
            {
                "turn": turn,
                "fence": fence,
                "lease_ms": self._settings.lease_ms,
                "record_ms": self._settings.turn_limit_ms
                + max(self._settings.result_ttl_ms, self._settings.response_ttl_ms),
                "first": first,
            },
            tail=events,
        )
        match reply:
            case [b"appended", _, last]:
                return int(last)
        return _not_held("turn_append", reply)

    async def turn_finish(
        self,
        tenant: str,
        turn: str,
        cid: str,
        fence: int,
        *,
        digest: str,
        state: Literal["completed", "failed"],
        result: Result,
        kept: Kept,
        first: int,
        events: Sequence[bytes] = (),
        messages: Sequence[bytes] = (),
    ) -> Literal["finished"] | Ended | Word:
        """Commits the turn: its last events, its answer, the messages for the transcript, its key, and the release."""
        settings, keys = self._settings, TenantKeys(tenant)
        reply = await self._run(
            "turn_finish",
            {
                "conversation": keys.conversation(cid),
                "live": keys.live(cid),
                "turns": keys.turns(cid),
                "queue": keys.queue(cid),
                "messages": keys.messages(cid),
                "record": keys.turn(turn),
                "events": keys.events(turn),
                "running": keys.running,
                "waiting": keys.waiting,
                "cancelling": keys.cancelling,
                "sessions": keys.sessions,
                "idempotency": keys.idempotency(digest) if digest else None,
            },
            {
                "turn": turn,
                "fence": fence,
                "cid": cid,
                "state": state,
                "status": result.status,
                "headers": result.headers,
                "content_type": result.content_type,
                "body": result.body if kept != "none" else b"",
                "kept": kept,
                "record_ms": self._record_ms(digest),
                "key_ms": settings.key_ttl_ms,
                "vouch_ms": settings.vouch_ms,
                "mailboxes": MAILBOXES,
                "first": first,
                "event_count": len(events),
            },
            tail=[*events, *messages],
        )
        match reply:
            case [b"finished", _, _]:
                return "finished"
        return _not_held("turn_finish", reply)

    async def turn_abandon(
        self,
        tenant: str,
        turn: str,
        cid: str,
        *,
        fence: int | None,
        digest: str,
        state: Literal["refused", "cancelled", "interrupted", "failed"],
        refusal: Result | None = None,
    ) -> Literal["abandoned"] | Ended | Word:
        """Ends the turn without an answer, takes it out of the queue, or takes back a grant (`fence` None: unknown)."""
        settings, keys, answer = self._settings, TenantKeys(tenant), refusal or _NO_RESULT
        reply = await self._run(
            "turn_abandon",
            {
                "record": keys.turn(turn),
                "events": keys.events(turn),
                "live": keys.live(cid),
                "turns": keys.turns(cid),
                "queue": keys.queue(cid),
                "running": keys.running,
                "waiting": keys.waiting,
                "cancelling": keys.cancelling,
                "accepted": keys.accepted,
                "conversation": keys.conversation(cid),
                "idempotency": keys.idempotency(digest) if digest else None,
            },
            {
                "turn": turn,
                "fence": "" if fence is None else fence,
                "replica": settings.replica,
                "state": state,
                "status": answer.status,
                "headers": answer.headers,
                "content_type": answer.content_type,
                "body": answer.body,
                "record_ms": settings.refusal_ttl_ms if state == "refused" else self._record_ms(digest),
                "key_ms": settings.key_ttl_ms,
                "vouch_ms": settings.vouch_ms,
                "mailboxes": MAILBOXES,
            },
        )
        match reply:
            case [b"abandoned", _]:
                return "abandoned"
        return _not_held("turn_abandon", reply)

    async def session_delete(
        self, tenant: str, target: Target, generation: int, token: str, *, force: bool, receipts: bool, nonce: str
    ) -> list[str] | Busy | Word:
        """Retires the session. Returns the turns that were live in it and are asked to stop."""
        settings, keys, cid = self._settings, TenantKeys(tenant), target.cid
        reply = await self._run(
            "session_delete",
            {
                "conversation": keys.conversation(cid),
                "live": keys.live(cid),
                "turns": keys.turns(cid),
                "leftovers": keys.purging(cid) if receipts else keys.leftovers(cid),
                "queue": keys.queue(cid),
                "messages": keys.messages(cid),
                "running": keys.running,
                "waiting": keys.waiting,
                "cancelling": keys.cancelling,
                "sessions": keys.sessions,
                "tombstones": keys.tombstones,
                "retired": keys.retired(target.retired_bucket),
                "erasing": keys.erasing,
                "record": keys.record(record_digest(target.named)),
            },
            {
                "session": target.named,
                "cid": cid,
                "generation": generation,
                "token": token,
                "force": int(force),
                "nonce": nonce,
                "retired_id": target.retired_id,
                "lease_ms": settings.lease_ms,
                "vouch_ms": settings.vouch_ms,
                "mailboxes": MAILBOXES,
            },
        )
        match reply:
            case [b"deleted", _, turns]:
                return [turn.decode() for turn in turns]
            case [b"not_found", _]:
                return Word("not_found")
            case [b"busy", _, holder, left_ms]:
                return Busy(holder.decode(), int(left_ms))
        unknown_reply("session_delete", reply)

    async def session_erase(self, tenant: str, cid: str, turns: Sequence[str], *, receipts: bool) -> int:
        """Erases what these turns of retired sessions left. Returns how many of their kind are left."""
        keys = TenantKeys(tenant)
        both = [keys.leftovers(cid), keys.purging(cid)]
        reply = await self._run(
            "session_erase",
            {"leftovers": both[receipts], "others": both[not receipts], "erasing": keys.erasing},
            {"cid": cid, "receipts": "all" if receipts else "keep", "receipt_ms": self._settings.result_ttl_ms},
            tail_keys=[key for turn in turns for key in (keys.turn(turn), keys.events(turn))],
            tail=turns,
        )
        match reply:
            case [b"erased", _, left]:
                return int(left)
        unknown_reply("session_erase", reply)

    async def prune(self, tenant: str, horizon_ms: int, cids: Sequence[str]) -> int:
        """Drops those of the conversations that were idle or retired for the horizon. Returns how many."""
        keys = TenantKeys(tenant)
        reply = await self._run(
            "prune",
            {
                "sessions": keys.sessions,
                "tombstones": keys.tombstones,
                "running": keys.running,
                "waiting": keys.waiting,
            },
            {
                "horizon_ms": horizon_ms,
                "lease_ms": self._settings.lease_ms,
                "vouch_ms": self._settings.vouch_ms,
                "nonce": new_nonce(),
            },
            tail_keys=[
                key
                for cid in cids
                for key in (
                    keys.conversation(cid), keys.live(cid), keys.turns(cid), keys.queue(cid), keys.messages(cid)
                )
            ],
            tail=cids,
        )  # fmt: skip
        match reply:
            case [b"pruned", _, count]:
                return int(count)
        unknown_reply("prune", reply)

    def _unended_ms(self, keep_ms: int) -> int:
        """How long what belongs to a turn is kept should nobody end it."""
        return self._settings.turn_limit_ms + max(self._settings.result_ttl_ms, keep_ms)

    def _record_ms(self, digest: str) -> int:
        return self._settings.result_ttl_ms if digest else self._settings.unkeyed_ttl_ms


def _state(raw: bytes) -> TurnState:
    return cast("TurnState", raw.decode())


def _not_held(name: str, reply: list[Any]) -> Ended | Word:
    match reply:
        case [b"ended", _, state]:
            return Ended(_state(state))
        case [b"lost" | b"cancelled" | b"gap" as word, *_]:
            return Word(word.decode())
    unknown_reply(name, reply)


def _turn_view(turn: str, left_ms: int, flat: list[bytes]) -> TurnView:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode()

    def number(name: bytes) -> int:
        return int(fields.get(name) or 0)

    result = None
    if number(b"status"):
        result = Result(
            status=number(b"status"),
            body=fields.get(b"body", b""),
            content_type=text(b"content_type"),
            headers=fields.get(b"headers", b""),
        )
    return TurnView(
        turn=turn,
        state=_state(fields[b"state"]),
        cid=text(b"cid"),
        session_id=text(b"session"),
        generation=number(b"generation"),
        fence=number(b"fence"),
        replica=text(b"replica"),
        route=text(b"route"),
        key_digest=text(b"key"),
        started_ms=number(b"accepted_ms") or number(b"started_ms"),
        ended_ms=number(b"ended_ms") or None,
        left_ms=left_ms,
        kept=cast("Kept", text(b"kept") or "none"),
        event_count=number(b"events"),
        result=result,
        length=number(b"length"),
        stored=bool(number(b"keep_ms")),
        hidden=bool(number(b"hidden")),
        request=fields.get(b"request", b""),
        about=fields.get(b"about", b""),
        accepted_in=text(b"home"),
    )
