"""From a request for a turn to a grant, an earlier answer, or a refusal: asking, waiting in line, joining."""

import asyncio
import contextlib
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
from coordinator.identity import Declared, Target, key_digest, new_nonce, target_of
from coordinator.keeper import Keeper
from coordinator.keys import TenantKeys
from coordinator.mailbox import Mailbox
from coordinator.outcomes import Busy, Ended, Granted, Late, Queued, Replay, Seen, TurnRequest, TurnView, Word
from coordinator.settings import Settings
from coordinator.steps import Begun, Steps

_JOIN_FIRST_S = 0.02  # the first look at a running turn that is joined; doubled from look to look,
_JOIN_MOST_S = 0.5  # up to here


@dataclass(slots=True)
class Attempt:
    """One request on its way: where it leads, and under which token."""

    request: TurnRequest
    turn: str
    target: Target
    digest: str
    instead_of: str = ""
    expected: str = ""
    """The session it saw first while waiting: that one, or none."""
    asking: "asyncio.Task[Begun] | None" = None
    """The question under way, which goes on when its caller leaves."""
    sent: float = 0.0
    """`time.monotonic()` before the last question was sent: local deadlines count from there."""


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
        return Attempt(request, turn, target_of(request.tenant, request.address), digest)

    def drain(self) -> None:
        """From now on nothing new is admitted, and nobody waits."""
        self._draining = True
        self._mailbox.wake_all()

    async def admit(self, attempt: Attempt) -> Granted | Replay:
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
        if view is None or view.state == "running":
            raise otherwise
        if view.state == "interrupted":
            raise self._unknown_execution()
        return Replay(view)

    async def _ask_until_answered(self, attempt: Attempt) -> Granted | Replay:
        until = monotonic() + self._settings.turn_wait_ms / 1000
        asked_again = False
        with self._mailbox.expecting(attempt.turn) as woken, self._leaving(attempt):
            while True:
                woken.clear()
                outcome = await self._ask(attempt)
                match outcome:
                    case Granted():
                        return outcome
                    case Seen():
                        view = await self._join(attempt, outcome, woken)
                        if view is not None and view.state != "interrupted":
                            return Replay(view)
                        if view is not None:
                            self._rerun(attempt, view)
                        elif asked_again:
                            raise IdempotencyExpired("the answer to this key is no longer kept")
                        asked_again = True
                    case Queued(session_id=session_id):
                        self._check_draining()
                        attempt.expected = attempt.expected or session_id
                        left_s = until - monotonic()
                        if left_s <= 0:
                            raise self._busy(outcome)
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(woken.wait(), min(left_s, self._settings.poll_ms / 1000))
                    case _:
                        raise self._refusal(attempt, outcome)

    @contextlib.contextmanager
    def _leaving(self, attempt: Attempt) -> Iterator[None]:
        """Whoever leaves without an answer leaves no trace: no place in the queue, no grant that nobody holds."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, (asyncio.CancelledError, StoreUnavailable)) or attempt.expected:
                self._take_back(attempt)
            raise

    def _take_back(self, attempt: Attempt) -> None:
        tenant, turn, cid, digest = attempt.request.tenant, attempt.turn, attempt.target.cid, attempt.digest

        async def abandon() -> None:
            # The question's answer comes first: what it grants could not be taken back before.
            if attempt.asking:
                await asyncio.wait({attempt.asking})
            await self._steps.turn_abandon(tenant, turn, cid, fence=None, digest=digest, state="refused")

        # After a lease a grant that nobody holds has ended by itself.
        self._background.see_to(abandon, self._settings.lease_ms / 1000)

    async def _ask(self, attempt: Attempt) -> Begun:
        """One question, in a task of its own: a caller who leaves cannot cut it off between sending and reply."""
        attempt.asking = self._background.spawn(self._ask_in_time(attempt))
        return await asyncio.shield(attempt.asking)

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

    async def _join(self, attempt: Attempt, seen: Seen, woken: asyncio.Event) -> TurnView | None:
        """The ended turn that the key names, waited for while it runs; None when there is none to be told of."""
        pause_s = _JOIN_FIRST_S
        while (view := await self._look(attempt, seen)) is not None and view.state == "running":
            self._check_draining()
            if attempt.request.follow and view.event_count:
                return view
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), pause_s)  # set early only when nobody may wait any longer
            pause_s = min(2 * pause_s, _JOIN_MOST_S)
        return view

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
        if view.state == "cancelled":
            raise TurnCancelled("the turn with this key was stopped")
        return None if view.state == "refused" and view.result is None else view

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
