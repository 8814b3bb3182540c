"""A load balancer without stickiness, for clients that are given one address."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.support.process import LOCALHOST

_HOP_BY_HOP = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length", "accept-encoding"})


class RoundRobinBalancer:
    """`async with RoundRobinBalancer(urls) as balancer:` sends each request to the next of them, streams unbuffered.

    `served` counts the requests by address.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = itertools.cycle(urls)
        self.served: Counter[str] = Counter()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOCALHOST, 0).start()
        self.url = f"http://{LOCALHOST}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        url = next(self._urls)
        self.served[url] += 1
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        async with self._http.request(request.method, url + request.raw_path, data=body, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    response.headers.add(name, value)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
