"""The two ends of a stream that passes through: events arriving in batches, and the client they go to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from aiohttp import web

from gateway_adapter.disconnects import is_gone
from gateway_adapter.errors import ErrorAnswer
from gateway_adapter.sse import KEEP_ALIVE, event, with_id

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"

_IDLE_S = 15  # silence after which a comment shows the client and the balancers that the line is alive
_AHEAD = 256  # events taken from the upstream before the client has taken theirs: bounded memory for a slow client


class ClientStream:
    """The client's end: opened with its headers at the first event, never written to once the client has gone.

    A `numbered` stream gives each event an id, from which a client that was cut off can go on.
    """

    def __init__(self, request: web.Request, *, numbered: bool) -> None:
        self._request = request
        self._numbered = numbered
        self._next = 0
        self.response = web.StreamResponse()

    @property
    def is_open(self) -> bool:
        """Whether the headers have been sent."""
        return self.response.prepared

    @property
    def last(self) -> int:
        """The number of the last event sent; -1 before the first."""
        return self._next - 1

    @property
    def is_gone(self) -> bool:
        """Whether nobody is there to read any more."""
        return is_gone(self._request)

    async def open(self, headers: Mapping[str, str]) -> None:
        """Sends the headers: from here on the status is 200, and a failure is an event."""
        self.response.headers.update({**headers, "Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache"})
        with contextlib.suppress(ConnectionError):
            await self.response.prepare(self._request)

    async def send(self, blocks: Sequence[bytes], first: int | None = None) -> None:
        """Sends events; `first` is the number of the first of them, where it does not follow the last one sent.

        A client that has gone is no error: who watches it decides on the turn.
        """
        number = self._next if first is None else first
        self._next = number + len(blocks)
        if self._numbered:
            blocks = [with_id(block, at) for at, block in enumerate(blocks, number)]
        await self._write(b"".join(blocks))

    async def fail(self, block: bytes) -> None:
        """Sends an event that is not the turn's: without a number, so that who goes on later misses nothing for it."""
        await self._write(block)

    async def keep_alive(self) -> None:
        """Sends a comment, to show the client and the balancers that the line is alive."""
        await self._write(KEEP_ALIVE)

    async def close(self) -> web.StreamResponse:
        """Ends the stream; what a handler returns."""
        if not self.is_gone:
            with contextlib.suppress(ConnectionError):
                await self.response.write_eof()
        return self.response

    async def _write(self, data: bytes) -> None:
        if data and not self.is_gone:
            with contextlib.suppress(ConnectionError):
                await self.response.write(data)


class NoClient(ClientStream):
    """Nobody listens: the events of background work go to the store alone."""

    def __init__(self) -> None:
        self._opened = False

    @property
    def is_open(self) -> bool:
        """Whether the stream has begun, for those who read the log."""
        return self._opened

    @property
    def is_gone(self) -> bool:
        """Nobody was there to leave."""
        return False

    async def open(self, headers: Mapping[str, str]) -> None:  # noqa: ARG002 - nobody reads them
        """Remembers that the stream has begun."""
        self._opened = True

    async def send(self, blocks: Sequence[bytes], first: int | None = None) -> None:
        """Nobody is there."""

    async def keep_alive(self) -> None:
        """Nobody is there."""

    async def close(self) -> web.StreamResponse:
        """There is nothing to return."""
        return web.StreamResponse()


def error_event(error: ErrorAnswer) -> bytes:
    """The last event of a stream that failed."""
    return event(error.body)


@contextlib.asynccontextmanager
async def arriving(events: AsyncIterator[bytes], pause_s: float) -> AsyncIterator[AsyncIterator[list[bytes]]]:
    """Batches of events as they arrive: what came while the last batch was being handled, at most one every `pause_s`.

    An empty batch says that nothing has come for a while. Leaving the block stops the reading.
    """
    queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_AHEAD)
    reading = asyncio.create_task(_read(events, queue))
    try:
        yield _batches(queue, pause_s)
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def _read(events: AsyncIterator[bytes], queue: "asyncio.Queue[bytes | Exception | None]") -> None:
    try:
        async for block in events:
            await queue.put(block)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the batches are read
        await queue.put(error)
    await queue.put(None)


async def _batches(queue: "asyncio.Queue[bytes | Exception | None]", pause_s: float) -> AsyncIterator[list[bytes]]:
    while True:
        try:
            async with asyncio.timeout(_IDLE_S):
                item = await queue.get()
        except TimeoutError:
            yield []
            continue
        batch: list[bytes] = []
        while isinstance(item, bytes):
            batch.append(item)
            if queue.empty():
                break
            item = queue.get_nowait()
        if batch:
            yield batch
        if isinstance(item, Exception):
            raise item
        if item is None:
            return
        if pause_s and not queue.full():  # more than that is not held back: it is as many a batch as may be
            await asyncio.sleep(pause_s)
