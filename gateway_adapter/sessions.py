"""`/api/sessions`: what there is, and its deletion."""

import json

from aiohttp import web

from coordinator import Coordinator
from gateway_adapter import context
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.representation import session_json
from gateway_adapter.requests import session_id

_PAGE = 20
_PAGE_MOST = 100


async def list_sessions(request: web.Request) -> web.Response:
    """The tenant's sessions, the most recently active first; `limit` and `offset` page through them."""
    limit = _number(request, "limit", _PAGE, 1, _PAGE_MOST)
    offset = _number(request, "offset", 0, 0, 10**9)
    found = await _coordinator(request).sessions(request[context.TENANT], limit=limit + 1, offset=offset)
    page = {"object": "list", "data": [session_json(view) for view in found[:limit]], "has_more": len(found) > limit}
    return web.json_response(page)


async def get_session(request: web.Request) -> web.Response:
    """One session, with its live turns."""
    view = await _coordinator(request).session(request[context.TENANT], _id(request))
    return web.json_response(session_json(view))


async def delete_session(request: web.Request) -> web.Response:
    """Retires the session; answers after everything of it is erased."""
    wanted = _id(request)
    await _coordinator(request).delete_session(
        request[context.TENANT], wanted, force=_flag(request, "force"), receipts=_flag(request, "receipts")
    )
    return web.json_response({"id": wanted, "object": "session.deleted", "deleted": True})


async def get_messages(request: web.Request) -> web.Response:
    """The stored transcript, each message byte for byte as it was sent."""
    wanted = _id(request)
    messages = await _coordinator(request).messages(request[context.TENANT], wanted)
    head = json.dumps({"object": "list", "session_id": wanted}).encode()[:-1]
    return web.Response(body=head + b', "data": [' + b", ".join(messages) + b"]}", content_type="application/json")


def _coordinator(request: web.Request) -> Coordinator:
    return request.app[context.COORDINATOR]


def _id(request: web.Request) -> str:
    return session_id(request.match_info["id"])


def _flag(request: web.Request, name: str) -> bool:
    match request.query.get(name, "false").lower():
        case "true" | "1" | "":
            return True
        case "false" | "0":
            return False
    raise InvalidRequest(f"{name} must be true or false.", name, f"invalid_{name}")


def _number(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 10 or not least <= int(text) <= most:
        raise InvalidRequest(f"{name} must be a whole number from {least} to {most}.", name, f"invalid_{name}")
    return int(text)
