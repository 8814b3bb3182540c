"""Following a turn's event log as it grows, from any replica, until the turn has ended."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from coordinator.errors import EventsLost
from coordinator.keys import TenantKeys
from coordinator.mailbox import Mailbox
from coordinator.outcomes import TurnView
from coordinator.settings import Settings
from coordinator.views import Views

Event = tuple[int, bytes]


class Followers:
    """Reads logs for any number of readers over one connection; each keeps its own place."""

    def __init__(self, views: Views, mailbox: Mailbox, settings: Settings) -> None:
        self._views = views
        self._mailbox = mailbox
        self._settings = settings

    async def follow(
        self, tenant: str, view: TurnView, after: int, idle_s: float
    ) -> AsyncGenerator[Event | None, None]:
        """The events behind number `after` (the first of a turn is 0; -1 for all), each with its number, as they come.
        None after `idle_s` without any. Ends with the turn's end.

        Raises:
            EventsLost: events between are not, or no longer, kept.
        """
        number = after
        quiet_s = 0.0
        async with self._mailbox.following(TenantKeys(tenant).events(view.turn)) as news:
            while True:
                news.clear()
                # State first, log second: of a turn that had ended the log is whole.
                current = await self._views.turn(tenant, view.turn)
                ended = current is None or current.state not in ("accepted", "running")
                found = False
                async for number_, event in self._views.numbered_events(tenant, view.turn, number):
                    if number_ != number + 1:
                        raise EventsLost("events between are no longer kept")
                    number, found = number_, True
                    yield number, event
                if ended:
                    if current is None or number + 1 < current.event_count or (current.kept == "body" and number >= 0):
                        raise EventsLost("the rest of the events is not kept")
                    return
                quiet_s = 0.0 if found else quiet_s
                left_ms = current.left_ms if current else 0
                wait_s = min(self._settings.poll_ms, max(left_ms, 20) if left_ms else self._settings.poll_ms) / 1000
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), wait_s)
                    continue
                quiet_s += wait_s
                if quiet_s >= idle_s:
                    quiet_s = 0.0
                    yield None
