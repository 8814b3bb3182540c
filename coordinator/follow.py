"""Following a turn's event log as it grows, from any replica, until the turn has ended."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable
from time import monotonic

from coordinator.errors import CommitUnconfirmed, Draining, EventsLost, StoreUnavailable, TurnCancelled
from coordinator.keys import TenantKeys
from coordinator.mailbox import Mailbox
from coordinator.outcomes import TurnView
from coordinator.settings import Settings
from coordinator.views import Views

_RETRY_S = 0.1  # between looks while the store is away

Event = tuple[int, bytes]


class Followers:
    """Reads logs for any number of readers over one connection; each keeps its own place."""

    def __init__(self, views: Views, mailbox: Mailbox, settings: Settings, draining: Callable[[], bool]) -> None:
        self._draining = draining
        self._views = views
        self._mailbox = mailbox
        self._settings = settings

    async def follow(
        self, tenant: str, view: TurnView, after: int, idle_s: float
    ) -> AsyncGenerator[Event | None, None]:
        """The events behind number `after` (the first of a turn is 0; -1 for all), each with its number, as they come.
        None after `idle_s` without any. Ends with the turn's end.

        Raises:
            EventsLost: events between are not, or no longer, kept; or there is no event of that number yet.
            TurnCancelled: its session was deleted meanwhile.
            CommitUnconfirmed: the store was away for longer than a lease.
            Draining: this replica lets nobody wait any more.
        """
        number, quiet_s, seen = after, 0.0, False
        async with self._mailbox.following(TenantKeys(tenant).events(view.turn)) as news:
            while True:
                news.clear()
                current, found = await self._look(tenant, view.turn, number)
                if current is None and seen:
                    raise TurnCancelled("the turn's session was deleted")
                if current is None or (not seen and number >= _told(current)):
                    raise EventsLost("there are no such events")
                seen = True
                for number_, event in found:
                    if number_ != number + 1:
                        raise EventsLost("events between are no longer kept")
                    number = number_
                    yield number, event
                if current.ended:
                    if not current.event_count <= number + 1 <= _told(current):
                        raise EventsLost("the rest of the events is not kept")
                    return
                if self._draining():
                    raise Draining("this replica is shutting down")
                quiet_s = 0.0 if found else quiet_s
                # The lease's end is no news: nobody is there to tell it.
                wait_s = min(self._settings.poll_ms, max(current.left_ms, 20) if current.left_ms else math.inf) / 1000
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), wait_s)
                    continue
                quiet_s += wait_s
                if quiet_s >= idle_s:
                    quiet_s = 0.0
                    yield None

    async def _look(self, tenant: str, turn: str, number: int) -> tuple[TurnView | None, list[Event]]:
        """The turn and its events behind that number, through short absences of the store."""
        until = monotonic() + self._settings.lease_ms / 1000
        while True:
            try:
                # State first, log second: of a turn that had ended the log is whole.
                current = await self._views.turn(tenant, turn)
                return current, [event async for event in self._views.numbered_events(tenant, turn, number)]
            except StoreUnavailable:
                if monotonic() > until:
                    raise CommitUnconfirmed("the store did not say what became of the turn") from None
            await asyncio.sleep(_RETRY_S)


def _told(view: TurnView) -> int:
    """How many events a reader can have of a turn: when it ended without a last one of its own, that one is made up."""
    made_up = view.ended and view.kept != "events" and view.state != "completed"
    return view.event_count + made_up
