"""A store that is still reading its data set from disk, for as long as a test wants."""

from __future__ import annotations

import asyncio

import hiredis

from tests.support.tcp import TcpService

_REFUSAL = b"-LOADING Redis is loading the dataset in memory\r\n"
_INFO = b"# Server\r\nredis_version:7.4.0\r\n# Persistence\r\nloading:1\r\n"


class LoadingServer(TcpService):
    """Answers the handshake and INFO as a loading server does, and every other command with `-LOADING`.

    Give it the port of a stopped server to take that one's place. `refused` counts the commands turned away.
    """

    refused = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer commands until the client leaves."""
        commands = hiredis.Reader()
        protocol = 2
        while data := await reader.read(65536):
            commands.feed(data)
            while (command := commands.gets()) is not False:
                name = command[0].upper()
                if name == b"HELLO" and len(command) > 1:
                    protocol = int(command[1])
                writer.write(self._reply(name, protocol))
            await writer.drain()

    def _reply(self, name: bytes, protocol: int) -> bytes:
        if name == b"HELLO":
            facts = b"$5\r\nproto\r\n:%d\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n" % protocol
            return (b"%2\r\n" if protocol == 3 else b"*4\r\n") + facts
        if name in (b"AUTH", b"SELECT", b"CLIENT"):
            return b"+OK\r\n"
        if name == b"INFO":
            return b"$%d\r\n%s\r\n" % (len(_INFO), _INFO)
        self.refused += 1
        return _REFUSAL
