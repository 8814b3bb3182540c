"""Server-sent events as a test reads them: with their numbers and names, one by one or all that came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

_PATIENCE_S = 8.0
"""How long the next event may take: below the limit of a test, so that silence fails with a name."""


@dataclass(frozen=True)
class Event:
    """One event; `number` is its id, None without one."""

    number: int | None
    name: str
    data: str

    def json(self) -> Any:
        """The data, parsed."""
        return json.loads(self.data)


def event_of(block: bytes) -> Event | None:
    """The event of one block; None for a comment."""
    fields: dict[str, list[str]] = {}
    for line in block.decode().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    if "data" not in fields:
        return None
    number = int(fields["id"][0]) if "id" in fields else None
    return Event(number, fields.get("event", [""])[0], "\n".join(fields["data"]))


def events_of(body: bytes) -> list[Event]:
    """The events of a whole stream, comments left out."""
    return [event for block in body.replace(b"\r\n", b"\n").split(b"\n\n") if (event := event_of(block))]


def numbers(events: Iterable[Event]) -> list[int | None]:
    """Their ids."""
    return [event.number for event in events]


def names(events: Iterable[Event]) -> list[str]:
    """Their names."""
    return [event.name for event in events]


class EventReader:
    """`async with EventReader(http, "GET", url) as stream:` reads event by event; leaving closes the connection."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        method: str,
        url: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._asking = http.request(method, url, json=json, headers=headers)
        self._buffer = b""

    async def __aenter__(self) -> Self:
        self.response = await asyncio.wait_for(self._asking, _PATIENCE_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.response.close()

    async def take(self, count: int) -> list[Event]:
        """The next so many events; fewer when the stream ends, or is cut, before."""
        found: list[Event] = []
        while len(found) < count:
            block, ended, rest = self._buffer.partition(b"\n\n")
            if ended:
                self._buffer = rest
                if event := event_of(block):
                    found.append(event)
                continue
            try:
                piece = await asyncio.wait_for(self.response.content.readany(), _PATIENCE_S)
            except (aiohttp.ClientError, ConnectionError):
                break
            if not piece:
                break
            self._buffer += piece.replace(b"\r\n", b"\n")
        return found

    async def rest(self) -> list[Event]:
        """All events up to the end of the stream."""
        return await self.take(1_000_000)
