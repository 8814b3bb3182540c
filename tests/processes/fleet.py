"""Several replicas behind one client that asks them in turn."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp

from tests.support import clients
from tests.support.clients import Reply
from tests.support.replicas import Replica
from tests.support.servers import StoreServer
from tests.support.upstream import StubUpstream
from tests.support.waiting import until, until_sync


class Fleet:
    """Every call goes to the next replica unless `at` names one by its number."""

    def __init__(
        self, http: aiohttp.ClientSession, replicas: Sequence[Replica], server: StoreServer, upstream: StubUpstream
    ) -> None:
        self.http = http
        self.replicas = replicas
        self.server = server
        self.upstream = upstream
        self._next = itertools.cycle(range(len(replicas)))

    def url(self, at: int | None = None) -> str:
        """The address of that replica, or of the next."""
        return self.replicas[next(self._next) if at is None else at].url

    async def chat(
        self, messages: Sequence[Mapping[str, Any]] | str, *, at: int | None = None, **options: Any
    ) -> Reply:
        """One chat completion."""
        return await clients.chat(self.http, self.url(at), messages, **options)

    async def request(self, method: str, path: str, *, at: int | None = None, **options: Any) -> Reply:
        """Any request."""
        return await clients.request(self.http, method, self.url(at) + path, **options)

    async def session(self, session_id: str, *, at: int | None = None) -> Reply:
        """`GET /api/sessions/{id}`."""
        return await self.request("GET", f"/api/sessions/{quote(session_id, safe='')}", at=at)

    async def delete(self, session_id: str, query: str = "", *, at: int | None = None) -> Reply:
        """`DELETE /api/sessions/{id}`."""
        return await self.request("DELETE", f"/api/sessions/{quote(session_id, safe='')}{query}", at=at)

    async def hold(self, messages: Sequence[Mapping[str, Any]] | str, **options: Any) -> asyncio.Task[Reply]:
        """A request whose upstream call runs until the test releases it."""
        running = self.upstream.running
        asking = asyncio.create_task(self.chat(messages, **{"model": "gate", **options}))
        await self.upstream.until(lambda up: up.running == running + 1)
        return asking

    async def queued(self, session_id: str, count: int = 1, *, at: int | None = None) -> None:
        """Wait until so many requests wait for the session."""

        async def enough() -> bool:
            waiting: int = (await self.session(session_id, at=at)).json()["queued"]
            return waiting == count

        await until(enough, what=f"a queue of {count}")

    async def prune(self) -> None:
        """`session-coordinator prune`, as an operator runs it, with nothing young enough to stay."""
        command = [sys.executable, "-m", "gateway_adapter.cli", "prune", "--horizon", "0s", "--store", self.server.url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=15, check=False)
        assert done.returncode == 0, done.stderr

    async def restart(self) -> None:
        """Stop every replica and start it again."""
        await asyncio.gather(*(asyncio.to_thread(replica.restart) for replica in self.replicas))


def forget(upstream: StubUpstream) -> None:
    """End what still runs at the shared stub, and let it count from nothing."""
    upstream.mode = None
    upstream.upcoming.clear()
    until_sync(lambda: upstream.release() == 0 and upstream.running == 0, what="an idle upstream")
    upstream.calls.clear()
    upstream.aborted = upstream.max_overlap = 0
