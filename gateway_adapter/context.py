"""What a handler finds in its application and its request."""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager

from aiohttp import web

from coordinator import Coordinator
from gateway_adapter.disconnects import Disconnects
from gateway_adapter.errors import NO_RETRY
from gateway_adapter.executors.base import Executor
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.settings import GatewaySettings

COORDINATOR = web.AppKey("coordinator", Coordinator)
EXECUTOR = web.AppKey("executor", Executor)
SETTINGS = web.AppKey("settings", GatewaySettings)
DISCONNECTS = web.AppKey("disconnects", Disconnects)

TENANT = web.RequestKey("tenant", str)
"""Who the API key belongs to."""
SESSION = web.RequestKey("session", str)
"""The id of the session that the request was found to belong to."""

ABOUT = web.RequestKey("about", Mapping[str, str])
"""Headers that tell about the turn beside its session: they are part of its answer, and of every replay."""


async def read_body(request: web.Request) -> bytes:
    """The request's body.

    Raises:
        InvalidRequest: larger than `max_body_bytes`; a body that says so is not read at all.
    """
    limit = request.app[SETTINGS].max_body_bytes
    if (request.content_length or 0) <= limit:
        with contextlib.suppress(web.HTTPRequestEntityTooLarge):
            body = await request.read()
            if len(body) <= limit:
                return body
    raise InvalidRequest(f"The body may have at most {limit} bytes.", None, "body_too_large", 413)


def session_headers(request: web.Request) -> dict[str, str]:
    """The headers that tell the client its session."""
    session_id = request.get(SESSION)
    return {**request.get(ABOUT, {}), "X-Hermes-Session-Id": session_id} if session_id else {}


def answer_headers(request: web.Request) -> dict[str, str]:
    """The headers of whatever is sent after the dispatch: the session, and that the client is not to send it again."""
    return {**session_headers(request), **NO_RETRY}


def ended_by_disconnect(request: web.Request) -> AbstractContextManager[None]:
    """Cancels the handler when its client goes, until `outlives_its_client`."""
    return request.app[DISCONNECTS].cancelling(request)


def outlives_its_client(request: web.Request, *, resumable: bool) -> None:
    """Says that the turn was granted: from here on it is finished also without its client, where that is wanted."""
    wanted = request.app[SETTINGS].on_disconnect
    if wanted == "finish" or (wanted == "auto" and resumable):
        request.app[DISCONNECTS].spare()
