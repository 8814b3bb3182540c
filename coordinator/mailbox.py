"""A replica's mailbox: short messages that make things faster and that nothing depends on.

Messages are `wake <turn>` (a waiter asks again) and `cancel <turn>` (its holder looks whether it is to stop). A message
that is lost costs its receiver one poll, or one renewal. Besides, whoever follows a turn hears of its new events and of
its end on the turn's own channel, over the same connection.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

from coordinator.keys import MAILBOXES
from coordinator.store import Store

_RECONNECT_S = 0.25  # well below the poll that covers for it, without hammering a server that is down
_SILENCE_S = 5.0  # after which the server is asked whether it is still there: one that vanished says nothing


class Mailbox:
    """Receives this replica's messages while it is open."""

    def __init__(self, store: Store, replica: str, on_cancel: Callable[[], None]) -> None:
        self._on_cancel = on_cancel
        self._store = store
        self._channel = MAILBOXES + replica
        self._wanted: dict[str, asyncio.Event] = {}
        self._followed: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._tuned: set[str] = set()
        self._tuning = asyncio.Lock()
        self._subscription: Any = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen(), name="mailbox")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @contextlib.contextmanager
    def expecting(self, turn: str) -> Iterator[asyncio.Event]:
        """An event that is set when a message for the turn arrives."""
        event = self._wanted[turn] = asyncio.Event()
        try:
            yield event
        finally:
            del self._wanted[turn]

    @contextlib.asynccontextmanager
    async def following(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever something is published there, and once the store listens for it: what a look
        between the two may have missed is seen by the next. All followers share this replica's connection."""
        event = asyncio.Event()
        self._followed[channel].add(event)
        try:
            await self._tune(channel)
            yield event
        finally:
            self._followed[channel].discard(event)
            if not self._followed[channel]:
                del self._followed[channel]
                await self._tune(channel)

    async def _tune(self, channel: str) -> None:
        """Listens to the channel, or no longer, as is wanted by now: one change at a time, so that none overtakes."""
        async with self._tuning:
            wanted = channel in self._followed
            if self._subscription is None or wanted == (channel in self._tuned):
                return
            with contextlib.suppress(Exception):  # the line is cut: it is opened again with what is followed then
                if wanted:
                    self._tuned.add(channel)
                    await self._subscription.subscribe(channel)
                else:
                    self._tuned.discard(channel)
                    await self._subscription.unsubscribe(channel)

    def wake_all(self) -> None:
        """Sets every event, so that whoever waits looks again."""
        for event in [*self._wanted.values(), *(event for events in self._followed.values() for event in events)]:
            event.set()

    async def _listen(self) -> None:
        while True:
            client = self._store.listener()
            try:
                async with client.pubsub() as subscription:
                    async with self._tuning:
                        self._tuned = set(self._followed)
                        await subscription.subscribe(self._channel, *self._tuned)
                        self._subscription = subscription
                    while True:
                        message = await subscription.get_message(timeout=_SILENCE_S)
                        if message is None:
                            await subscription.ping()
                            message = await subscription.get_message(timeout=_SILENCE_S)
                        if message is None:
                            break
                        self._deliver(message)
            except Exception:  # noqa: BLE001 - whatever cut the line, it is opened again; polls cover meanwhile
                await asyncio.sleep(_RECONNECT_S)
            finally:
                # The next one may be another server's: the new primary, or another node of the cluster.
                self._subscription = None
                with contextlib.suppress(Exception):
                    await client.aclose()

    def _deliver(self, message: dict[str, Any]) -> None:
        for news in self._followed.get(message["channel"].decode(), ()):
            news.set()
        if message["type"] != "message":
            return
        word, _, turn = message["data"].decode("ascii", "replace").partition(" ")
        if word == "wake" and (event := self._wanted.get(turn)):
            event.set()
        elif word == "cancel":
            self._on_cancel()
