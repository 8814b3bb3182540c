"""A replica's mailbox: short messages that make things faster and that nothing depends on.

Messages are `wake <turn>` (a waiter asks again) and `cancel <turn>` (its holder looks whether it is to stop). A message
that is lost costs its receiver one poll, or one renewal.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
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

    def wake_all(self) -> None:
        """Sets every event, so that whoever waits looks again."""
        for event in self._wanted.values():
            event.set()

    async def _listen(self) -> None:
        while True:
            client = self._store.listener()
            try:
                async with client.pubsub() as subscription:
                    await subscription.subscribe(self._channel)
                    while True:
                        message = await subscription.get_message(ignore_subscribe_messages=True, timeout=_SILENCE_S)
                        if message is None:
                            await subscription.ping()
                            message = await subscription.get_message(ignore_subscribe_messages=True, timeout=_SILENCE_S)
                        if message is None:
                            break
                        self._deliver(message)
            except Exception:  # noqa: BLE001 - whatever cut the line, it is opened again; polls cover meanwhile
                await asyncio.sleep(_RECONNECT_S)
            finally:
                # The next one may be another server's: the new primary, or another node of the cluster.
                with contextlib.suppress(Exception):
                    await client.aclose()

    def _deliver(self, message: dict[str, Any]) -> None:
        word, _, turn = message["data"].decode("ascii", "replace").partition(" ")
        if word == "wake" and (event := self._wanted.get(turn)):
            event.set()
        elif word == "cancel":
            self._on_cancel()
