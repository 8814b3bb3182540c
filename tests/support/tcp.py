"""The listening half of the fake servers: a port, its connections, and a clean end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tests.support.process import LOCALHOST, START_ATTEMPTS, free_port


class TcpService(ABC):
    """`async with` listens on 127.0.0.1; each connection is one task running `serve`, ended by `cut` or on exit."""

    def __init__(self, *, port: int | None = None) -> None:
        self._wanted_port = port
        self.port = port or 0
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk to one client; returning closes its connection."""

    @property
    def url(self) -> str:
        """`redis://` address of this service."""
        return f"redis://{LOCALHOST}:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def cut(self) -> None:
        """Break every open connection; new ones are welcome."""
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._guard(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _guard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except OSError:
            pass  # a broken connection is what these servers are for
        finally:
            writer.close()

    async def __aenter__(self) -> Self:
        for attempt in range(START_ATTEMPTS):
            self.port = self._wanted_port or free_port()
            try:
                self._server = await asyncio.start_server(self._accept, LOCALHOST, self.port)
                break
            except OSError:
                if self._wanted_port or attempt == START_ATTEMPTS - 1:
                    raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
