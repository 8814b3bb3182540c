"""The library's front door."""

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Literal, Self
from uuid import uuid4

from coordinator.admission import Admission
from coordinator.background import Background
from coordinator.doctor import Finding, examine
from coordinator.errors import (
    AdmissionConflict,
    CoordinatorError,
    ScriptError,
    SessionBusy,
    SessionNotFound,
    StaleGeneration,
    StoreUnavailable,
)
from coordinator.fleet import Fleet, ReplicaView
from coordinator.follow import Followers
from coordinator.identity import (
    Continuation,
    Declared,
    Explicit,
    Minted,
    Target,
    declared_scope,
    generation_of,
    key_digest,
    new_nonce,
    new_turn,
    parse_session_id,
    physical_scope,
    session_scope,
    target_of,
)
from coordinator.identity import fingerprint as digest_of
from coordinator.janitor import Janitor
from coordinator.keeper import Keeper
from coordinator.keys import TenantKeys
from coordinator.mailbox import Mailbox
from coordinator.outcomes import (
    BOUNDARIES,
    RESET_REASONS,
    Busy,
    Ended,
    Granted,
    HostSession,
    Relation,
    Replay,
    Reset,
    Result,
    SessionView,
    TurnRequest,
    TurnView,
    Word,
)
from coordinator.settings import Settings
from coordinator.steps import Steps
from coordinator.store import Lineage, Store
from coordinator.turn import Turn
from coordinator.views import Views

_PING_S = 0.8  # below the second at which many balancers give up on a readiness check
_CLOSE_S = 3.0  # how long closing waits for releases under way


class Coordinator:
    """One replica's session coordinator.

    ```python
    async with Coordinator.open("redis://localhost:6379/0") as coordinator:
        async with coordinator.turn(TurnRequest(tenant="acme", address=Explicit("chat-42"), route="chat")) as turn:
            if turn.replay is None:
                answer = await model(turn.history)
                await turn.finish(Result(status=200, body=answer), messages=[question, answer])
    ```
    """

    def __init__(
        self, store: Store, settings: Settings, mailbox: Mailbox, keeper: Keeper, background: Background
    ) -> None:
        self.settings = settings
        self._store = store
        self._steps = Steps(store, settings)
        self._views = Views(store, self._steps)
        self._janitor = Janitor(store, self._steps, self._views, settings)
        self._keeper = keeper
        self._background = background
        self._followers = Followers(self._views, mailbox, settings, lambda: self._admission.draining)
        self._fleet = Fleet(store, self._steps, settings, lambda: keeper.count)
        self._admission = Admission(self._steps, settings, mailbox, background, keeper)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, settings: Settings | None = None, *, serving: bool = True) -> AsyncIterator[Self]:
        """A coordinator on the store at `url` (`embedded://`, `redis://host:port/db`, `unix:///path`,
        `redis+sentinel://host:port,host:port/service/db`, `redis+cluster://host:port,host:port`; `rediss` for TLS).

        It opens without asking the store, which may be away: each call says so then. With `serving` off it neither
        cleans nor counts among the replicas, as befits short-lived tools.

        Raises:
            ValueError: the URL or a setting makes no sense.
            NewerSchema: the store belongs to a newer version of this library.
        """
        # The settings are its own: what the fleet agrees on is taken over into them.
        settings, lineage = replace(settings or Settings()), Lineage()
        async with (
            Store(url, settings, lineage) as store,
            Keeper(url, settings, lineage) as keeper,
            Mailbox(store, settings.replica, keeper.hurry) as mailbox,
            Background(_CLOSE_S) as background,
        ):
            coordinator = cls(store, settings, mailbox, keeper, background)
            with contextlib.suppress(StoreUnavailable):  # away for now: every heartbeat asks again
                await store.check_durability()
                await coordinator._fleet.agree(write=serving, founding=True)
            async with contextlib.AsyncExitStack() as stack:
                if serving:
                    await stack.enter_async_context(coordinator._janitor)
                    await stack.enter_async_context(coordinator._fleet)
                yield coordinator

    def turn(self, request: TurnRequest) -> Turn:
        """The turn that a request asks for: enter it with `async with`.

        Entering raises what `Admission.admit` raises.
        """
        self._serve(request.tenant)
        return self._turn(request)

    def _turn(self, request: TurnRequest, resumes: TurnView | None = None) -> Turn:
        return Turn(
            request,
            resumes=resumes,
            steps=self._steps,
            settings=self.settings,
            admission=self._admission,
            keeper=self._keeper,
            background=self._background,
        )

    async def accept(self, request: TurnRequest) -> TurnView | Replay:
        """Writes a turn down, with what its request says `about` itself, to be granted later by `resume`, here or
        elsewhere. Its key is taken from here on. A replay may be of a turn in any state.

        Raises what entering a turn raises.
        """
        self._serve(request.tenant)
        turn = new_turn()
        attempt = self._admission.attempt(request, turn)
        # What it follows on has to hold when it is granted, too: it may have to fork then.
        attempt.work = b"all" if attempt.length is None else str(attempt.length).encode()
        admitted = await self._admission.admit(attempt)
        if isinstance(admitted, Replay):
            return admitted
        if isinstance(admitted, Granted):
            raise ScriptError("the store granted what it was to accept")
        # Not read again: what was accepted is never told as if nothing were known of it.
        return TurnView(
            turn=turn,
            state="accepted",
            cid=attempt.target.cid,
            session_id=admitted.session_id,
            generation=admitted.generation,
            fence=0,
            replica=self.settings.replica,
            route=request.route,
            key_digest=attempt.digest,
            started_ms=admitted.accepted_ms,
            ended_ms=None,
            left_ms=0,
            kept="none",
            event_count=0,
            result=None,
            stored=request.stored,
            request=attempt.work,
            about=request.about,
        )

    def resume(self, tenant: str, view: TurnView) -> Turn:
        """The turn that was accepted: enter it with `async with`. It waits for its conversation as long as it takes."""
        here = view.session_id
        address = Explicit(here) if view.request == b"all" else Continuation(here, int(view.request))
        request = TurnRequest(tenant=tenant, address=address, route=view.route, policy="wait", stored=view.stored)
        return self._turn(request, resumes=view)

    async def claim(self, tenant: str) -> list[TurnView]:
        """Accepted turns whose replica died before it started them: from here on this replica's to resume."""
        if self._admission.draining:
            return []  # it could only keep the work from those who would start it
        accepted = TenantKeys(tenant).accepted
        now_ms = (await self._steps.synchronise(accepted)).now()
        tokens = await self._store.execute("ZRANGEBYSCORE", accepted, "-inf", now_ms, "LIMIT", 0, 20)
        found = [await self._steps.run_claim(tenant, token.decode()) for token in tokens]
        return [view for view in found if view is not None]

    async def give_up(self, tenant: str, view: TurnView, refusal: Result | None = None) -> bool:
        """Ends an accepted turn that will not be granted: cancelled, or failed with an answer that says why. Returns
        False for one that was granted meanwhile."""
        answer = await self._steps.turn_abandon(
            tenant,
            view.turn,
            view.cid,
            fence=None,
            digest=view.key_digest,
            state="failed" if refusal else "cancelled",
            refusal=refusal,
        )
        return answer != Ended("running")

    async def hide_turn(self, tenant: str, turn: str) -> bool:
        """Deletes an ended turn's answer; a key that names it still gets it. Returns False while it has not ended."""
        return await self._steps.turn_hide(tenant, turn)

    def follow(
        self, tenant: str, view: TurnView, after: int = -1, idle_s: float = 15
    ) -> AsyncGenerator[tuple[int, bytes] | None, None]:
        """The turn's events behind number `after`, as they come, until it has ended; see `Followers.follow`."""
        return self._followers.follow(tenant, view, after, idle_s)

    def drain(self) -> None:
        """From now on nothing new is admitted and nobody waits (`Draining`); running turns go on."""
        self._admission.drain()

    def interrupt(self) -> None:
        """Ends every turn that runs here: each is cancelled, recorded as interrupted, and released."""
        self._keeper.interrupt_all()

    async def cancel_session(self, tenant: str, session_id: str) -> list[str]:
        """Asks the session's live turns to stop, wherever they run. Returns them. Raises SessionNotFound."""
        answer = await self._steps.turn_cancel(tenant, target_of(tenant, Explicit(session_id)))
        return await self._stopping(tenant, answer)

    async def cancel_turn(self, tenant: str, turn: str) -> bool:
        """Asks one turn to stop. Returns whether it was live. Raises SessionNotFound: there is no record of it."""
        view = await self._views.turn(tenant, turn)
        if view is None:
            raise SessionNotFound("no such turn")
        if view.state == "accepted" and await self.give_up(tenant, view):
            return True
        if view.state not in ("accepted", "running"):
            return False
        answer = await self._steps.turn_cancel(tenant, Target(view.cid, view.session_id), turn)
        return bool(await self._stopping(tenant, answer))

    async def _stopping(self, tenant: str, answer: list[str] | Word) -> list[str]:
        if isinstance(answer, Word):
            raise SessionNotFound("no such session")
        with contextlib.suppress(CoordinatorError):
            await self._steps.tell_stopping(tenant, answer)
        return answer

    async def agreed_settings(self) -> dict[str, str]:
        """What all replicas have agreed on, as it stands in the store."""
        return await self._fleet.agreed()

    async def agree_on(self, name: str, value: int | str) -> None:
        """Changes what all replicas have agreed on: `lease_ms`, `implicit_turns`. Raises ValueError."""
        await self._fleet.change(name, value)

    def examine(self) -> AsyncIterator[Finding]:
        """Looks at the server and its settings; see `doctor.examine`."""
        return examine(self._store, self._fleet)

    async def replicas(self) -> list[ReplicaView]:
        """The replicas that serve on this store."""
        return await self._fleet.replicas()

    async def delete_session(
        self, tenant: str, session_id: str, *, force: bool = False, receipts: bool = False
    ) -> list[str]:
        """Retires a session for good, then erases what is left of it. Returns the turns that were ended by it.

        `force` ends live turns and waiters, `receipts` erases also the answers that keyed clients received.

        Raises:
            SessionNotFound: retired before, unknown, or another tenant's.
            SessionBusy: a turn is live or waiting, and not `force`.
            StoreUnavailable: not confirmed; the same call again finds out.
        """
        target = target_of(tenant, Explicit(session_id))
        if not force and target.kind == "x":
            await self._check_idle(tenant, target)
        # A host's id that is bound moves its conversation on first: its end is recorded, so no second try does again.
        await self._end(tenant, target, "deleted", force=force)
        answer = await self._steps.session_delete(
            tenant, target, generation_of(session_id), uuid4().hex, force=force, receipts=receipts, nonce=new_nonce()
        )
        match answer:
            case Word():
                raise SessionNotFound("no such session")
            case Busy():
                raise _busy(answer)
        await self._stopping(tenant, answer)
        await self._janitor.erase(tenant, target.cid)
        return answer

    async def reset_session(
        self,
        tenant: str,
        address: Explicit | Declared,
        *,
        reason: str = "session_reset",
        expected: str | int | None = None,
        idempotency_key: str | None = None,
        fingerprint: str = "",
    ) -> Reset:
        """Opens the next generation of a conversation, at once: what runs in the old one is stopped.

        `expected`: the session id or generation that must be current. With a key the same reset, sent again at
        any time, is answered as the first time and moves nothing.

        Raises:
            ValueError: an unknown reason, or an id that a client chose: it has no next generation.
            SessionNotFound: the id is not current, or nothing is known under the declared key.
            StaleGeneration: not what was expected.
            AdmissionConflict: the key was used for another request.
        """
        target = target_of(tenant, address)
        _check_reason(reason)
        if target.kind == "x":
            raise ValueError("a session id that a client chose has no next generation")
        answer = await self._steps.session_reset(
            tenant,
            target,
            expected="" if expected is None else str(expected),
            reason=reason,
            token=uuid4().hex,
            # Made here, so that a key that was used for another conversation is a conflict whatever the caller gives.
            fingerprint=digest_of("reset", target.cid, target.named, reason, str(expected), fingerprint),
            digest=key_digest(idempotency_key) if idempotency_key is not None else "",
        )
        match answer:
            case Word("conflict"):
                raise AdmissionConflict("the idempotency key was used for another request")
            case Word("stale"):
                raise StaleGeneration("the conversation is not where the request expects it")
            case Word():
                raise SessionNotFound("no such session")
        await self._stopping(tenant, answer.stopped)
        await self._janitor.erase(tenant, target.cid)
        return answer

    async def open_session(
        self, tenant: str, address: Explicit | Declared | Minted, *, history: Literal["client", "store"] = "store"
    ) -> tuple[SessionView, bool]:
        """Opens a session without a turn. Returns it, and whether it is new.

        Raises:
            SessionNotFound: the id is retired, or of our pattern and not current.
        """
        self._serve(tenant)
        source = address.source if isinstance(address, Declared) else self.settings.source
        answer = await self._steps.session_open(
            tenant, target_of(tenant, address), history=history, source=source, token=uuid4().hex
        )
        if isinstance(answer, Word):
            raise SessionNotFound("no such session")
        session_id, new = answer
        return await self._views.session(tenant, session_id), new

    async def edit_session(
        self, tenant: str, session_id: str, *, notes: bytes = b"", messages: Sequence[bytes] = ()
    ) -> None:
        """Adds messages to a session's transcript without a turn, or replaces its notes (opaque bytes).

        Raises:
            SessionNotFound: no such session.
            SessionBusy: a turn is running, and messages were to be added.
        """
        answer = await self._steps.session_edit(
            tenant, target_of(tenant, Explicit(session_id)), token=uuid4().hex, notes=notes, messages=messages
        )
        match answer:
            case Word():
                raise SessionNotFound("no such session")
            case Busy():
                raise _busy(answer)

    async def fork_session(self, tenant: str, session_id: str) -> SessionView:
        """Opens a new session that starts with a copy of this one's transcript. Raises SessionNotFound."""
        cid = target_of(tenant, Minted()).cid
        answer = await self._steps.session_fork(tenant, target_of(tenant, Explicit(session_id)), cid)
        if isinstance(answer, Word):
            raise SessionNotFound("no such session")
        return await self._views.session(tenant, answer[0])

    async def session_record(
        self,
        tenant: str,
        session_id: str,
        *,
        source: str,
        key: str | None = None,
        parent: str | None = None,
        relation: Relation = "none",
    ) -> HostSession:
        """Records a host's own session id. With a key it is bound to that conversation's current generation, for good;
        a compression of a bound parent goes on in the parent's; a fork is bound to none.

        Raises:
            ValueError: the id has the form of ours.
            SessionNotFound: the id was deleted.
        """
        target = self._host_target(tenant, session_id)
        answer = await self._steps.session_record(
            tenant,
            target,
            source=source,
            key=key or "",
            cid=target_of(tenant, Declared(source, key)).cid if key else "",
            parent=parent or "",
            relation=relation,
        )
        if isinstance(answer, Word):
            raise SessionNotFound("no such session")
        return answer

    async def session_end(self, tenant: str, session_id: str, reason: str) -> bool:
        """Ends a host's own session id; the first end wins. Returns whether its conversation moved on: for one of the
        six boundary reasons, once, while the generation it was bound in is still current.

        Raises:
            ValueError: the reason is empty, or the id has the form of ours.
        """
        if not reason:
            raise ValueError("an end has a reason")
        return await self._end(tenant, self._host_target(tenant, session_id), reason)

    async def session_promote(self, tenant: str, session_id: str, reason: str = "session_reset") -> bool:
        """Makes a boundary of a host's session id that has not ended, or only by accident (`agent_close`,
        `ws_orphan_reap`). Returns whether its conversation moved on.

        Raises:
            ValueError: the reason is no boundary, or the id has the form of ours.
        """
        _check_reason(reason)
        return await self._end(tenant, self._host_target(tenant, session_id), reason, over_accidents=True)

    async def host_session(self, tenant: str, session_id: str) -> HostSession | None:
        """What is recorded of a host's own session id: source, key, and whether it is a fork, in one read."""
        return await self._steps.host_session(tenant, session_id)

    async def scope(self, tenant: str, session_id: str) -> str:
        """Affinity scope of a session id, ours or a host's own: what may leave for a model's provider in its place.

        Without an answer from the store it is the id's own scope, never a conversation's.
        """
        ours = parse_session_id(session_id)
        if ours:
            return session_scope(tenant, ours.cid, session_id, ours.generation, ours.nonce)
        try:
            host = await self._steps.host_session(tenant, session_id)
            if host and host.cid and not host.is_fork:
                return declared_scope(tenant, host.cid, host.generation, host.nonce)
            nonce = host.nonce if host else await self._steps.session_nonce(tenant, session_id)
        except CoordinatorError:
            nonce = ""
        return physical_scope(tenant, session_id, nonce)

    async def _end(
        self, tenant: str, target: Target, reason: str, *, over_accidents: bool = False, force: bool = True
    ) -> bool:
        if target.kind != "x":
            return False
        host = await self._steps.host_session(tenant, target.named)
        cid, token = host.cid if host else "", uuid4().hex
        while host is not None:
            answer = await self._steps.session_end(
                tenant,
                target,
                cid,
                reason=reason,
                boundary=reason in BOUNDARIES,
                token=token,
                over_accidents=over_accidents,
                force=force,
            )
            match answer:
                case (moved, stopped):
                    await self._stopping(tenant, stopped)
                    return moved
                case Busy():
                    raise _busy(answer)
                case Word():
                    return False
                case _:
                    cid = answer  # bound meanwhile, and bound for good: the next answer is final
        return False

    @staticmethod
    def _host_target(tenant: str, session_id: str) -> Target:
        if parse_session_id(session_id):
            raise ValueError("an id of ours is no host's own session id")
        return target_of(tenant, Explicit(session_id))

    async def _check_idle(self, tenant: str, target: Target) -> None:
        """Raises SessionBusy: what is refused in a moment anyway must not have moved a conversation on before."""
        with contextlib.suppress(SessionNotFound):
            view = await self._views.session(tenant, target.named)
            if view.live or view.queued:
                holder, left_ms = (view.live[0].replica, view.live[0].expires_in_ms) if view.live else ("", 0)
                raise _busy(Busy(holder, left_ms))

    def _serve(self, tenant: str) -> None:
        if self._janitor.served(tenant):
            self._background.see_to(self._janitor.write_down, 60)

    async def session(self, tenant: str, session_id: str) -> SessionView:
        """The session with this id. Raises SessionNotFound."""
        return await self._views.session(tenant, session_id)

    async def sessions(self, tenant: str, *, limit: int = 20, offset: int = 0) -> list[SessionView]:
        """The tenant's sessions, the most recently active first."""
        return await self._views.sessions(tenant, limit=limit, offset=offset)

    async def messages(self, tenant: str, session_id: str) -> list[bytes]:
        """The transcript of a session, one JSON message an item. Raises SessionNotFound."""
        return await self._views.messages(tenant, session_id)

    async def turn_view(self, tenant: str, turn: str) -> TurnView | None:
        """The turn with this token; None when there is no record of it any more."""
        return await self._views.turn(tenant, turn)

    async def is_current(self, tenant: str, view: TurnView) -> bool:
        """Whether the turn's session is still its conversation's."""
        return (await self._steps.conversation_end(tenant, view.cid))[0] == view.session_id

    async def turns(self, tenant: str, session_id: str) -> list[TurnView]:
        """The turns of a session that still have a record, in order of their start. Raises SessionNotFound."""
        await self._views.session(tenant, session_id)
        return await self._views.turns(tenant, target_of(tenant, Explicit(session_id)))

    async def running_turns(self, tenant: str) -> list[TurnView]:
        """The tenant's running turns, on whichever replica, in order of their start."""
        return await self._views.running(tenant)

    def events(self, tenant: str, turn: str, after: int = 0) -> AsyncIterator[bytes]:
        """The events of a turn's log behind that sequence number, in order."""
        return self._views.events(tenant, turn, after)

    async def tenants(self) -> list[str]:
        """All tenants that have used the store."""
        return await self._views.tenants()

    async def prune(self, tenant: str, horizon_ms: int | None = None) -> int:
        """Cleans up until nothing of the tenant is past the horizon (default: `session_ttl_ms`). Returns how many
        conversations were dropped."""
        total = 0
        while count := await self._janitor.step(tenant, horizon_ms):
            total += count
        return total

    async def ping(self) -> float:
        """Seconds that the store takes for a reply. Raises StoreUnavailable."""
        started = monotonic()
        await self._store.execute("PING", patience_s=_PING_S)
        return monotonic() - started

    @property
    def store_changes(self) -> int:
        """How often the store turned out to be another server than before, or the same one restarted."""
        return self._store.changes

    async def eviction_policy(self) -> str:
        """The servers' `maxmemory-policy`, of one that may lose keys if any does; '' where they do not tell."""
        if self._store.embedded:
            return "noeviction"
        told = await self._store.everywhere("INFO", "memory")
        found = {policy for info in told.values() for policy in re.findall(r"maxmemory_policy:(\S+)", info.decode())}
        return min(found - {"noeviction"}, default="noeviction" if found else "")

    @property
    def running(self) -> int:
        """Turns running on this replica."""
        return self._keeper.count


def _check_reason(reason: str) -> None:
    if reason not in RESET_REASONS:
        raise ValueError(f"the reason must be one of {', '.join(sorted(RESET_REASONS))}")


def _busy(answer: Busy) -> SessionBusy:
    return SessionBusy("a turn is running in this session", max(1, min(answer.left_ms // 1000, 5)), answer.holder)
