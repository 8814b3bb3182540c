"""The least that stands between a client and a model: an aiohttp reverse proxy that knows nothing of sessions."""

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

_SESSION = web.AppKey("session", aiohttp.ClientSession)
_UPSTREAM = web.AppKey("upstream", str)
_KEPT = ("Content-Type", "Content-Length")


async def _pass_on(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    headers = {"Content-Type": request.headers["Content-Type"], "Accept-Encoding": "identity"}
    url = f"{request.app[_UPSTREAM]}{request.path}"
    async with request.app[_SESSION].post(url, data=body, headers=headers) as answer:
        response = web.StreamResponse(
            status=answer.status, headers={name: answer.headers[name] for name in _KEPT if name in answer.headers}
        )
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


async def _client(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        app[_SESSION] = session
        yield


def serve_proxy(port: int, upstream: str) -> None:
    """Serves until it is ended."""
    app = web.Application()
    app[_UPSTREAM] = upstream
    app.cleanup_ctx.append(_client)
    app.add_routes([web.post("/{path:.*}", _pass_on)])
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None)
