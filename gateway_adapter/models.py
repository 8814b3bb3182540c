"""`GET /v1/models`: what the executor offers."""

from aiohttp import web

from gateway_adapter import context, replays
from gateway_adapter.executors.base import UpstreamError


async def get(request: web.Request) -> web.Response:
    """The list as the executor gives it."""
    try:
        answer = await request.app[context.EXECUTOR].models()
    except UpstreamError as error:
        return replays.json_response(request, replays.refusal_of(error))
    return web.Response(
        status=answer.status,
        body=answer.body,
        headers={**answer.headers, "Content-Type": answer.content_type},
    )
