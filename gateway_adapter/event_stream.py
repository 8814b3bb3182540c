"""The two ends of a stream that passes through: events arriving in batches, and the client they go to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from aiohttp import web

from gateway_adapter.disconnects import is_gone
from gateway_adapter.errors import ErrorAnswer
from gateway_adapter.sse import KEEP_ALIVE, event

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"

_IDLE_S = 15  # silence after which a comment shows the client and the balancers that the line is alive
_AHEAD = 256  # events taken from the upstream before the client has taken theirs: bounded memory for a slow client


class ClientStream:
    """The client's end: opened with its headers at the first event, never written to once the client has gone."""

    KEEP_ALIVE: Final = KEEP_ALIVE

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse()

    @property
    def is_open(self) -> bool:
        """Whether the headers have been sent."""
        return self.response.prepared

    async def open(self, headers: Mapping[str, str]) -> None:
        """Sends the headers: from here on the status is 200, and a failure is an event."""
        self.response.headers.update({**headers, "Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache"})
        with contextlib.suppress(ConnectionError):
            await self.response.prepare(self._request)

    async def send(self, blocks: Sequence[bytes]) -> None:
        """Sends events as they are. A client that has gone is no error: who watches it decides on the turn."""
        if is_gone(self._request):
            return
        with contextlib.suppress(ConnectionError):
            await self.response.write(b"".join(blocks))

    async def close(self) -> web.StreamResponse:
        """Ends the stream; what a handler returns."""
        if not is_gone(self._request):
            with contextlib.suppress(ConnectionError):
                await self.response.write_eof()
        return self.response


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
        if pause_s and queue.empty():
            await asyncio.sleep(pause_s)
