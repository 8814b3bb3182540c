"""A line to a replica that breaks in the middle of an answer."""

from __future__ import annotations

import asyncio

from tests.support.process import LOCALHOST
from tests.support.tcp import TcpService

_END = b"\n\n"
_HEAD_END = b"\r\n\r\n"


class StreamCutter(TcpService):
    """Passes bytes both ways, and closes a connection once so many events of its answer have passed.

    `after` may be changed between requests; None lets everything through.
    """

    def __init__(self, target_port: int, *, after: int | None = None) -> None:
        super().__init__()
        self._target_port = target_port
        self.after = after

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes until either side leaves, or the line breaks."""
        after = self.after
        upstream_reader, upstream_writer = await asyncio.open_connection(LOCALHOST, self._target_port)
        pumps = {
            asyncio.create_task(self._pass(reader, upstream_writer)),
            asyncio.create_task(self._pass_answer(upstream_reader, writer, after)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            upstream_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def _pass_answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: int | None
    ) -> None:
        if after is None:
            await self._pass(reader, writer)
            return
        seen, passed, position = b"", 0, None
        while data := await reader.read(65536):
            seen += data
            if position is None:
                head = seen.find(_HEAD_END)
                if head < 0:
                    continue
                position = head + len(_HEAD_END)
            while after and (end := seen.find(_END, position)) >= 0:
                position, after = end + len(_END), after - 1
            if not after:
                writer.write(seen[passed:position])
                await writer.drain()
                return
            writer.write(seen[passed:])
            await writer.drain()
            passed = len(seen)
            position = max(position, len(seen) - 1)
