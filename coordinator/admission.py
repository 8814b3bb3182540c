"""From a request for a turn to a grant, an earlier answer, or a refusal: asking, waiting in line, joining."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic

from coordinator.background import Background
from coordinator.errors import (
    AdmissionConflict,
    Draining,
    IdempotencyExpired,
    LeaseLost,
    LimitReached,
    QueueFull,
    SessionBusy,
    SessionNotFound,
    StaleGeneration,
    StoreFull,
    StoreUnavailable,
    TurnCancelled,
    UnknownExecution,
)  # fmt: skip
from coordinator.identity import Continuation, Declared, Minted, Target, key_digest, new_nonce, target_of
from coordinator.keeper import Keeper
from coordinator.keys import TenantKeys
from coordinator.mailbox import Mailbox
from coordinator.outcomes import Accepted, Busy, Ended, Granted, Late, Queued, Replay, Seen, TurnRequest, TurnView, Word
from coordinator.settings import Settings
from coordinator.steps import Begun, Steps

_LEASE_END_S = 0.01  # after the end of a lease in front: its last millisecond is over for sure


@dataclass(slots=True)
class Attempt:
    """One request on its way: where it leads, and under which token."""

    request: TurnRequest
    turn: str
    target: Target
    digest: str
    length: int | None = None
    """Messages of the transcript that it follows on, None for all there are."""
    work: bytes = b""
    """What is to be accepted, '' when the grant is asked for."""
    resumes: bool = False
    """Whether it was accepted before, and goes on."""
    missing: str = ""
    """The turn that its key named and that left nothing: it asked for itself then, once."""
    forked: str = ""
    """The session that was made for it as a fork."""
    instead_of: str = ""
    expected: str = ""
    """The session it saw first while waiting: that one, or none."""
    asking: "asyncio.Task[Begun] | None" = None
    """The question under way, which goes on when its caller leaves."""
    sent: float = 0.0
    """`time.monotonic()` before the last question was sent: local deadlines count from there."""


async def _pause(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class Admission:
    """Admits turns for one replica."""

    def __init__(
        self, steps: Steps, settings: Settings, mailbox: Mailbox, background: Background, keeper: Keeper
    ) -> None:
        self._steps = steps
        self._keeper = keeper
        self._settings = settings
        self._mailbox = mailbox
        self._background = background
        self._draining = False

    def attempt(self, request: TurnRequest, turn: str) -> Attempt:
        """The request on its way, under the turn's token."""
        digest = key_digest(request.idempotency_key) if request.idempotency_key is not None else ""
        length = request.address.length if isinstance(request.address, Continuation) else None
        return Attempt(request, turn, target_of(request.tenant, request.address), digest, length=length)

    def drain(self) -> None:
        """From now on nothing new is admitted, and nobody waits."""
        self._draining = True
        self._mailbox.wake_all()

    async def admit(self, attempt: Attempt) -> Granted | Accepted | Replay:
        """Asks until there is an answer. What is recorded is told also while nothing new is admitted.

        Raises:
            Refused: in one of its forms.
            TurnCancelled: the key's turn was stopped.
            StoreUnavailable: nothing was admitted, or it is being taken back.
        """
        if self._draining:
            return await self._recorded(attempt, Draining("this replica is shutting down"))
        try:
            return await self._ask_until_answered(attempt)
        except StoreFull as full:
            return await self._recorded(attempt, full)

    async def _recorded(self, attempt: Attempt, otherwise: Exception) -> Replay:
        """The answer that the key was given, if it was; else raises `otherwise`."""
        record = await self._steps.key_record(attempt.request.tenant, attempt.digest) if attempt.digest else None
        if record is None:
            raise otherwise
        fingerprint, seen = record
        if fingerprint != attempt.request.fingerprint:
            raise self._refusal(attempt, Word("conflict"))
        view = await self._look(attempt, seen)
        if view is None or view.state in ("accepted", "running"):
            raise otherwise
        if view.state == "interrupted":
            raise self._unknown_execution()
        return Replay(view)

    async def _ask_until_answered(self, attempt: Attempt) -> Granted | Accepted | Replay:
        until = math.inf if attempt.resumes else monotonic() + self._settings.turn_wait_ms / 1000
        with self._mailbox.expecting(attempt.turn) as woken, self._leaving(attempt):
            while True:
                woken.clear()
                outcome = await self._ask(attempt)
                match outcome:
                    case Granted() | Accepted():
                        if not attempt.resumes:  # of which a grant is not taken back
                            self._check_draining()
                        self._check_lease(attempt)
                        return outcome
                    case Seen():
                        replay = await self._earlier(attempt, outcome)
                        if replay:
                            return replay
                    case Queued(session_id=session_id):
                        attempt.expected = attempt.expected or session_id
                        self._check_draining()
                        await _pause(woken, min(until - monotonic(), self._pause_s(outcome)))
                        # Also for who was held up: past its time the caller has given up, and nothing is to run for it.
                        if monotonic() >= until:
                            raise self._busy(outcome)
                        self._check_draining()
                    case Word("branch"):
                        await self._fork(attempt)
                    case Word("limited") if attempt.resumes:
                        self._check_draining()
                        await _pause(woken, self._settings.poll_ms / 1000)
                    case _:
                        raise self._refusal(attempt, outcome)

    async def _earlier(self, attempt: Attempt, seen: Seen) -> Replay | None:
        """What the key's turn came to; None when the request is to ask once more, for itself."""
        await self._drop_fork(attempt)
        view = await self._join(attempt, seen)
        if view is not None and (view.state != "interrupted" or attempt.work):
            return Replay(view)
        if view is not None:
            self._rerun(attempt, view)
        elif seen.turn == attempt.missing:
            raise IdempotencyExpired("the answer to this key is no longer kept")
        else:
            attempt.missing = seen.turn
        self._check_draining()
        return None

    async def _fork(self, attempt: Attempt) -> None:
        """The conversation has gone on without the request: it goes on in a session of its own, from where it says."""
        tenant, cid = attempt.request.tenant, target_of(attempt.request.tenant, Minted()).cid
        answer = await self._steps.session_fork(tenant, attempt.target, cid, attempt.length)
        if isinstance(answer, Word):
            raise SessionNotFound("no such session")
        attempt.forked = answer[0]
        attempt.target, attempt.length, attempt.expected = Target(cid, answer[0]), None, ""

    async def _drop_fork(self, attempt: Attempt) -> None:
        """A fork that turned out not to be needed leaves no trace."""
        if attempt.forked:
            await self._steps.session_delete(
                attempt.request.tenant, attempt.target, 1, attempt.turn, force=True, receipts=False, nonce=new_nonce()
            )
            attempt.forked = ""

    @contextlib.contextmanager
    def _leaving(self, attempt: Attempt) -> Iterator[None]:
        """Whoever leaves without an answer leaves no trace: no place in the queue, no grant that nobody holds."""
        try:
            yield
        except BaseException as error:
            # What was accepted stays so, for another replica to start: nobody vouches for it from here on.
            left = isinstance(error, (asyncio.CancelledError, StoreUnavailable, Draining)) or attempt.expected
            if left and not attempt.resumes:
                self._take_back(attempt)
            if attempt.forked:
                self._background.see_to(lambda: self._drop_fork(attempt), self._settings.lease_ms / 1000)
            raise

    def _take_back(self, attempt: Attempt) -> None:
        tenant, turn, cid, digest = attempt.request.tenant, attempt.turn, attempt.target.cid, attempt.digest
        asking, patience_s = attempt.asking, self._settings.patience_ms / 1000

        async def abandon() -> None:
            # The question's answer comes first: what it grants could not be taken back before.
            if asking:
                await asyncio.wait({asking})
            await self._steps.turn_abandon(tenant, turn, cid, fence=None, digest=digest, state="refused")
            unanswered = asking is not None and (asking.cancelled() or asking.exception() is not None)
            if unanswered and monotonic() < attempt.sent + patience_s:
                raise StoreUnavailable("the question may still be on its way, and be granted until its time is up")

        # After a lease a grant that nobody holds has ended by itself.
        self._background.see_to(abandon, self._settings.lease_ms / 1000 + patience_s)

    async def _ask(self, attempt: Attempt) -> Begun:
        """One question, in a task of its own: a caller who leaves cannot cut it off between sending and reply."""
        while True:
            attempt.asking = self._background.spawn(self._ask_in_time(attempt))
            try:
                return await asyncio.shield(attempt.asking)
            except StoreUnavailable:
                if not attempt.resumes:
                    raise
            # Accepted work tells nobody that it was not started, and a grant whose reply was lost is told again.
            self._check_draining()
            await asyncio.sleep(self._settings.poll_ms / 1000)

    async def _ask_in_time(self, attempt: Attempt) -> Begun:
        request, target, settings = attempt.request, attempt.target, self._settings
        until = monotonic() + settings.patience_ms / 1000
        implicit = target.kind == "i"
        history = "client" if implicit and settings.transcripts == "managed" else "store"
        try:
            async with asyncio.timeout(settings.patience_ms / 1000):
                while True:
                    attempt.sent = monotonic()
                    outcome = await self._steps.turn_begin(
                        request.tenant,
                        target,
                        attempt.turn,
                        patience_s=until - attempt.sent,
                        expected=attempt.expected,
                        nonce=new_nonce(),
                        history=request.history or history,
                        source=request.address.source if isinstance(request.address, Declared) else None,
                        exclusive=not implicit or settings.implicit_turns == "exclusive",
                        policy=request.policy or settings.turn_policy,
                        route=request.route,
                        fingerprint=request.fingerprint,
                        digest=attempt.digest,
                        instead_of=attempt.instead_of,
                        length=attempt.length,
                        keep_ms=settings.response_ttl_ms if request.stored else None,
                        request=attempt.work,
                        about=request.about,
                        daily=await self._daily(request.tenant, target),
                        ready=lambda: self._keeper.settled(request.tenant),
                    )
                    if not isinstance(outcome, Late):
                        return outcome
                    # Its clock was further than known here (a step, another server); now it is known.
        except TimeoutError:
            raise StoreUnavailable("the store did not answer in time") from None

    async def _daily(self, tenant: str, target: Target) -> str:
        if self._settings.daily is None or target.kind != "d":
            return ""
        clock = await self._steps.clock(TenantKeys(tenant).running)
        return ",".join(map(str, self._settings.daily.around(clock.now())))

    async def _join(self, attempt: Attempt, seen: Seen) -> TurnView | None:
        """The ended turn that the key names, waited for while it runs; None when there is none to be told of."""
        channel = TenantKeys(attempt.request.tenant).events(seen.turn)
        view = await self._look(attempt, seen)
        if view is None or not self._to_be_awaited(attempt, view):
            return view
        async with self._mailbox.following(channel) as news:
            while True:
                news.clear()
                view = await self._look(attempt, seen)
                if view is None or not self._to_be_awaited(attempt, view):
                    return view
                self._check_draining()
                # The lease's end is no news: nobody is there to tell it.
                wait_ms = min(self._settings.poll_ms, max(view.left_ms, 20)) if view.left_ms else self._settings.poll_ms
                await _pause(news, wait_ms / 1000)

    @staticmethod
    def _to_be_awaited(attempt: Attempt, view: TurnView) -> bool:
        if attempt.work:
            return False  # of background work the state is the answer
        return view.state == "accepted" or (
            view.state == "running" and not (attempt.request.follow and view.event_count)
        )

    async def _look(self, attempt: Attempt, seen: Seen) -> TurnView | None:
        """The turn that the key names; None when it left nothing behind, so that the key is free.

        Raises:
            IdempotencyExpired: it left only that it was.
            TurnCancelled: it was stopped.
        """
        view = await self._steps.turn_status(attempt.request.tenant, seen.turn, seen.cid, attempt.digest)
        if view is None and seen.state == "running":
            return None
        if view is None or (view.state == "completed" and view.kept == "none"):
            raise IdempotencyExpired("the answer to this key is not kept, or not any longer")
        if view.state == "cancelled" and not attempt.work:
            raise TurnCancelled("the turn with this key was stopped")
        return None if view.state == "refused" and view.result is None else view

    def _pause_s(self, outcome: Queued) -> float:
        """How long a waiter waits for a message: until its next poll, or until the lease in front of it may have ended,
        which nobody sends a message about."""
        poll_s = self._settings.poll_ms / 1000
        return min(poll_s, outcome.left_ms / 1000 + _LEASE_END_S) if outcome.left_ms else poll_s

    def _check_lease(self, attempt: Attempt) -> None:
        """Raises StoreUnavailable for a grant that was as long on its way as its lease: nothing may start under it."""
        if monotonic() >= attempt.sent + self._settings.lease_ms / 1000:
            raise StoreUnavailable("the grant came too late")

    @property
    def draining(self) -> bool:
        """Whether nothing new is admitted any more."""
        return self._draining

    def _check_draining(self) -> None:
        if self._draining:
            raise Draining("this replica is shutting down")

    def _rerun(self, attempt: Attempt, view: TurnView) -> None:
        if self._settings.interrupted_turns != "rerun":
            raise self._unknown_execution()
        # Only in the session that the key was admitted to: naming it makes the store refuse any other.
        attempt.target = replace(attempt.target, cid=view.cid, named=view.session_id)
        attempt.instead_of = view.turn

    def _refusal(self, attempt: Attempt, outcome: Begun) -> Exception:
        match outcome:
            case Busy():
                return self._busy(outcome)
            case Ended(state="cancelled"):
                return TurnCancelled("the turn was stopped")
            case Ended():
                return LeaseLost("the turn ended before its grant arrived")
            case Word("conflict"):
                return AdmissionConflict("the idempotency key was used for another request")
            case Word("not_found") if attempt.instead_of:
                return self._unknown_execution()
            case Word("not_found"):
                return SessionNotFound("no such session")
            case Word("moved"):
                return StaleGeneration("the session ended while the request waited")
            case Word("full"):
                return QueueFull("too many requests wait for this session")
            case Word("limited"):
                return LimitReached("too many turns are running")
        raise AssertionError(outcome)

    @staticmethod
    def _unknown_execution() -> UnknownExecution:
        return UnknownExecution("the turn with this key was interrupted; nobody knows how far it came")

    @staticmethod
    def _busy(outcome: Busy | Queued) -> SessionBusy:
        # The lease is only an upper bound of what is left: a turn usually ends long before, so ask again soon.
        return SessionBusy(
            "another turn is running in this session", max(1, min(outcome.left_ms // 1000, 5)), outcome.holder
        )
