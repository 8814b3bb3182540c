"""One turn, from its admission to its end: `async with coordinator.turn(request) as turn`."""

import asyncio
import contextlib
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Literal, Self

from coordinator.admission import Admission
from coordinator.background import Background, until_done
from coordinator.errors import (
    CommitUnconfirmed,
    CoordinatorError,
    LeaseLost,
    StaleGeneration,
    StoreUnavailable,
    TurnCancelled,
)
from coordinator.identity import new_turn, session_scope
from coordinator.keeper import Keeper, Kept
from coordinator.outcomes import Accepted, Ended, Granted, Replay, Result, TurnRequest, TurnView, Word
from coordinator.settings import Settings
from coordinator.steps import Kept as KeptForm
from coordinator.steps import Steps

_RETRY_S = 0.1  # between tries to commit while the store is away
_EXIT_S = 2.0  # how long leaving the block waits for the release before it goes on in the background


class Turn:
    """A turn of a conversation, held under a lease while the block runs.

    On entry it is granted, or `replay` holds the answer that an earlier request with the same key was given. Leaving
    the block without `finish` or `refuse` ends the turn as failed, or as cancelled when the block was cancelled. When
    the lease is lost, or the turn is asked to stop, the block is cancelled and leaves with `LeaseLost`,
    `TurnCancelled`, or `StaleGeneration` when its conversation was reset.
    """

    def __init__(
        self,
        request: TurnRequest,
        *,
        steps: Steps,
        settings: Settings,
        admission: Admission,
        keeper: Keeper,
        background: Background,
        resumes: TurnView | None = None,
    ) -> None:
        self.id = resumes.turn if resumes else new_turn()
        """The turn's token, 32 hex."""
        self.replay: Replay | None = None
        self._steps = steps
        self._settings = settings
        self._admission = admission
        self._keeper = keeper
        self._background = background
        self._attempt = admission.attempt(request, self.id)
        if resumes:
            self._attempt.resumes, self._attempt.digest = True, resumes.key_digest
        self._tenant = request.tenant
        self._grant: Granted | None = None
        self._kept: Kept | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._lost: str | None = None
        self._settled = False
        self._cancel_sent = False
        self._committing: asyncio.Task[None] | None = None
        self._event_count = 0
        self._event_bytes = 0

    @property
    def grant(self) -> Granted:
        """The facts of the grant; only while the turn is held."""
        if self._grant is None:
            raise RuntimeError("the turn was not granted: it is a replay, or its block has not been entered")
        return self._grant

    @property
    def session_id(self) -> str:
        """The session that the turn, or the answer replayed, belongs to."""
        return self.replay.session_id if self.replay else self.grant.session_id

    @property
    def cid(self) -> str:
        """Its conversation's id."""
        return self._attempt.target.cid

    @property
    def fence(self) -> int:
        """Grows with every grant of the conversation: other systems can refuse older turns by it."""
        return self.grant.fence

    @property
    def history(self) -> list[bytes]:
        """The transcript read under the lease, one JSON message an item; empty when the client keeps it."""
        return self.grant.history

    @property
    def scope(self) -> str:
        """Opaque name of the session for caches: the same for all its turns, on every replica."""
        grant = self.grant
        return session_scope(self._tenant, self._attempt.target.cid, grant.session_id, grant.generation, grant.nonce)

    async def __aenter__(self) -> Self:
        admitted = await self._admission.admit(self._attempt)
        if isinstance(admitted, Replay):
            self.replay, self._settled = admitted, True
            return self
        if isinstance(admitted, Accepted):
            raise TypeError("a turn that is to be accepted is no block: use Coordinator.accept")
        self._grant = admitted
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        sent = self._attempt.sent
        self._kept = Kept(
            self._tenant,
            self.id,
            sent + self._settings.lease_ms / 1000,
            sent + self._settings.turn_limit_ms / 1000,
            self._on_lost,
        )
        self._keeper.keep(self._kept)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None  # from here on a loss has nothing left to stop
        if self._committing and not self._committing.done() and not isinstance(error, CommitUnconfirmed):
            await until_done(self._committing, _EXIT_S)
        if not self._settled and (not self._committing or self._lost == "cancelled"):
            await self._end(error)
        self._settled = True
        self._keeper.release(self.id)
        ours = self._cancel_sent and task is not None and task.uncancel() <= self._cancelling
        if ours and kind is asyncio.CancelledError:
            raise await self._loss() from None

    async def append(self, events: Sequence[bytes]) -> None:
        """Puts events into the turn's log, before its client sees them. An answer too large loses its log.

        Goes on through short absences of the store.

        Raises:
            LeaseLost, TurnCancelled: the turn is not the caller's any more.
        """
        self._event_bytes += sum(map(len, events))
        if self._event_bytes > self._settings.max_stored_bytes:
            return
        await self._check_deadline()
        while (answer := await self._try_append(events)) is None:
            await asyncio.sleep(_RETRY_S)
        if not isinstance(answer, int):
            raise await self._ended(answer)
        self._event_count += len(events)

    async def _check_deadline(self) -> None:
        """Raises LeaseLost past the turn's own deadline, whatever the store would still accept: others may have been
        told already that it is over."""
        if self._kept is not None and monotonic() >= self._kept.deadline:
            self._lost = self._lost or "lost"
            raise await self._loss()

    async def _try_append(self, events: Sequence[bytes]) -> int | Ended | Word | None:
        """None: the store did not answer. The keeper ends the turn, should that last as long as the lease."""
        sent, first = monotonic(), self._event_count + 1
        try:
            answer = await self._steps.turn_append(
                self._tenant, self.id, self._attempt.target.cid, self.fence, first, events
            )
        except StoreUnavailable:
            return None
        if isinstance(answer, int) and self._kept:
            self._kept.deadline = sent + self._settings.lease_ms / 1000
        return answer

    async def finish(
        self,
        result: Result,
        *,
        messages: Sequence[bytes] = (),
        events: Sequence[bytes] = (),
        state: Literal["completed", "failed"] = "completed",
    ) -> None:
        """Commits: the last events, the answer, the transcript's new messages, the key, and the release, in one step.

        Goes on although its caller is cancelled, and through short absences of the store.

        Raises:
            LeaseLost, TurnCancelled: nothing was recorded; somebody else acts for the conversation.
            CommitUnconfirmed: not confirmed in time; it is still being tried until the lease ends.
        """
        await self._check_deadline()
        self._committing = self._background.spawn(self._commit(result, messages, events, state))
        done, _ = await asyncio.wait({self._committing}, timeout=self._settings.commit_patience_ms / 1000)
        if not done:
            raise CommitUnconfirmed("the store did not confirm that the turn was recorded")
        self._committing.result()

    async def refuse(self, refusal: Result | None = None) -> None:
        """Ends a turn of which it is certain that nothing ran: its key is free again. Who joined gets the refusal."""
        self._settled = True
        await until_done(self._background.spawn(self._abandon("refused", refusal)), self._settings.patience_ms / 1000)

    async def _commit(
        self,
        result: Result,
        messages: Sequence[bytes],
        events: Sequence[bytes],
        state: Literal["completed", "failed"],
    ) -> None:
        while (answer := await self._try_commit(result, messages, events, state)) is None:
            await asyncio.sleep(_RETRY_S)
        if answer != "finished":
            raise await self._ended(answer)
        self._settled = True
        self._keeper.release(self.id)

    async def _try_commit(
        self,
        result: Result,
        messages: Sequence[bytes],
        events: Sequence[bytes],
        state: Literal["completed", "failed"],
    ) -> Literal["finished"] | Ended | Word | None:
        """None: the store did not answer, and there is time to try again."""
        try:
            return await self._steps.turn_finish(
                self._tenant,
                self.id,
                self._attempt.target.cid,
                self.fence,
                digest=self._attempt.digest,
                state=state,
                result=result,
                kept=self._form(result, events),
                first=self._event_count + 1,
                events=events,
                messages=messages if self.grant.history_kept else (),
            )
        except StoreUnavailable as error:
            if self._kept is None or monotonic() > self._kept.deadline:
                raise CommitUnconfirmed("the store did not confirm that the turn was recorded") from error
            return None

    def _form(self, result: Result, events: Sequence[bytes]) -> KeptForm:
        most = self._settings.max_stored_bytes
        if not (self._attempt.digest or self._attempt.request.stored) or len(result.body) > most:
            return "none"
        logged = self._event_bytes + sum(map(len, events))
        return "events" if 0 < logged <= most else "body"

    async def _end(self, error: BaseException | None) -> None:
        if self._lost == "lost":
            # Nobody may have taken the lease, and the store may have renewed it without our knowing: it is given up,
            # now or once the store is back, without the client waiting for that.
            self._background.spawn(self._abandon("interrupted", None))
            return
        if self._lost == "interrupted":
            state: Literal["interrupted", "cancelled", "failed"] = "interrupted"
        elif self._lost == "cancelled" or isinstance(error, asyncio.CancelledError):
            state = "cancelled"
        else:
            state = "failed"
        task = self._background.spawn(self._abandon(state, None))
        await until_done(task, _EXIT_S)

    async def _abandon(
        self, state: Literal["refused", "cancelled", "interrupted", "failed"], refusal: Result | None
    ) -> None:
        async def abandon() -> None:
            await self._steps.turn_abandon(
                self._tenant,
                self.id,
                self._attempt.target.cid,
                fence=self.fence,
                digest=self._attempt.digest,
                state=state,
                refusal=refusal if self._attempt.digest else None,  # without a key nobody can have joined
            )

        self._keeper.release(self.id)
        try:
            await abandon()
        except StoreUnavailable:
            self._background.see_to(abandon, self._settings.lease_ms / 1000)

    def _on_lost(self, reason: str) -> None:
        # Once the finish is on its way only its own answer counts.
        if self._settled or self._committing or self._lost:
            return
        self._lost = reason
        if self._task:
            self._cancel_sent = self._task.cancel()

    async def _ended(self, answer: Ended | Word | str) -> Exception:
        self._lost = "cancelled" if answer in (Ended("cancelled"), Word("cancelled")) else "lost"
        return await self._loss()

    async def _loss(self) -> Exception:
        if self._lost == "interrupted":
            return LeaseLost("the replica shut down while the turn ran")
        if self._lost != "cancelled":
            return LeaseLost("the turn's lease was lost")
        with contextlib.suppress(CoordinatorError):
            session_id, ended_by = await self._steps.conversation_end(self._tenant, self._attempt.target.cid)
            if session_id != self.grant.session_id and ended_by != "deleted":
                return StaleGeneration("the conversation moved on while the turn ran")
        return TurnCancelled("the turn was asked to stop")
