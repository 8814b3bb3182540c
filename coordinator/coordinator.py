"""The library's front door."""

import contextlib
from collections.abc import AsyncIterator
from time import monotonic
from typing import Self
from uuid import uuid4

from coordinator.admission import Admission
from coordinator.background import Background
from coordinator.errors import SessionBusy, SessionNotFound
from coordinator.identity import Explicit, generation_of, new_nonce, target_of
from coordinator.janitor import Janitor
from coordinator.keeper import Keeper
from coordinator.mailbox import Mailbox
from coordinator.outcomes import Busy, SessionView, TurnRequest, TurnView, Word
from coordinator.settings import Settings
from coordinator.steps import Steps
from coordinator.store import Store
from coordinator.turn import Turn
from coordinator.views import Views

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
        self._admission = Admission(self._steps, settings, mailbox, background)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, settings: Settings | None = None, *, clean: bool = True) -> AsyncIterator[Self]:
        """A coordinator on the store at `url` (`embedded://`, `redis://`, `rediss://`, `unix://`).

        It opens without asking the store, which may be away: each call says so then. With `clean` off it leaves the
        cleaning to others, as short-lived tools do.

        Raises:
            ValueError: the URL or a setting makes no sense.
        """
        settings = settings or Settings()
        async with (
            Store(url, settings) as store,
            Mailbox(store, settings.replica) as mailbox,
            Keeper(url, settings) as keeper,
            Background(_CLOSE_S) as background,
        ):
            coordinator = cls(store, settings, mailbox, keeper, background)
            async with contextlib.AsyncExitStack() as stack:
                if clean:
                    await stack.enter_async_context(coordinator._janitor)
                yield coordinator

    def turn(self, request: TurnRequest) -> Turn:
        """The turn that a request asks for: enter it with `async with`.

        Entering raises what `Admission.admit` raises.
        """
        if self._janitor.served(request.tenant):
            self._background.see_to(self._janitor.write_down, 60)
        return Turn(
            request,
            steps=self._steps,
            settings=self.settings,
            admission=self._admission,
            keeper=self._keeper,
            background=self._background,
        )

    def drain(self) -> None:
        """From now on nothing new is admitted and nobody waits (`Draining`); running turns go on."""
        self._admission.drain()

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
        target, generation = target_of(tenant, Explicit(session_id)), generation_of(session_id)
        answer = await self._steps.session_delete(
            tenant, target, generation, uuid4().hex, force=force, receipts=receipts, nonce=new_nonce()
        )
        match answer:
            case Word():
                raise SessionNotFound("no such session")
            case Busy(holder, left_ms):
                raise SessionBusy("a turn is running in this session", max(1, min(left_ms // 1000, 5)), holder)
        await self._janitor.erase(tenant, target.cid, generation)
        return answer

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
        await self._store.execute("PING")
        return monotonic() - started

    async def eviction_policy(self) -> str:
        """The server's `maxmemory-policy`; '' where it does not tell. Anything but `noeviction` may lose keys."""
        if self._store.embedded:
            return "noeviction"
        reply = await self._store.execute("CONFIG", "GET", "maxmemory-policy")
        pairs = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        value = next(iter(pairs.values()), b"")
        return value.decode() if isinstance(value, bytes) else str(value)

    @property
    def running(self) -> int:
        """Turns running on this replica."""
        return self._keeper.count
