"""Faults between a client and its store: replies lost after the server acted, slow links, cut connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.process import LOCALHOST
from tests.support.resp import take_frames
from tests.support.tcp import TcpService


@dataclass
class _Link:
    """One client connection: how many requests went up, how many replies came back, and the one that gets lost."""

    sent: int = 0
    answered: int = 0
    lost: int | None = None


class DropReplyProxy(TcpService):
    """Passes commands to `target_port` on 127.0.0.1 and replies back, one RESP frame at a time.

    `delay_ms` holds replies back; `swallow` executes requests and never answers them; `refuse` breaks new connections.
    `requests` are the raw frames seen, `dropped` counts lost replies, and `round_trips` how often a client sent
    something while it was owed nothing, so a pipeline counts once.
    """

    def __init__(self, target_port: int, *, port: int | None = None) -> None:
        super().__init__(port=port)
        self._target_port = target_port
        self._armed: list[bytes] = []
        self.delay_ms = 0.0
        self.swallow = False
        self.refuse = False
        self.requests: list[bytes] = []
        self.round_trips = 0
        self.dropped = 0

    def drop_next_reply(self, match: bytes = b"", *, times: int = 1) -> None:
        """Lose the reply to each of the next `times` requests whose bytes contain `match`, and close the connection.

        The server executes them; replies to earlier requests of the same connection still arrive. Not for connections
        that subscribed to something: there requests and replies are no pairs.
        """
        self._armed += [match] * times

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes both ways until either side leaves or a reply was lost."""
        if self.refuse:
            writer.transport.abort()
            return
        store_reader, store_writer = await asyncio.open_connection(LOCALHOST, self._target_port)
        link = _Link()
        pumps = {
            asyncio.create_task(self._pass_requests(link, reader, store_writer)),
            asyncio.create_task(self._pass_replies(link, store_reader, writer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            store_writer.close()

    async def _pass_requests(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = bytearray()
        while data := await reader.read(65536):
            buffer += data
            for frame in take_frames(buffer):
                self.round_trips += link.sent == link.answered
                link.sent += 1
                self.requests.append(frame)
                armed = next((match for match in self._armed if match in frame), None)
                if armed is not None and link.lost is None:
                    self._armed.remove(armed)
                    link.lost = link.sent
                writer.write(frame)
            await writer.drain()

    async def _pass_replies(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = bytearray()
        while data := await reader.read(65536):
            buffer += data
            if self.delay_ms:
                await asyncio.sleep(self.delay_ms / 1000)
            for frame in take_frames(buffer):
                if not frame.startswith(b">"):  # pushed messages answer nothing
                    link.answered += 1
                    if link.answered == link.lost:
                        self.dropped += 1
                        return
                if not self.swallow:
                    writer.write(frame)
            await writer.drain()
