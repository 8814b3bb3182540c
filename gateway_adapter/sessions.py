"""`/api/sessions`: what there is, and its deletion."""

import json
from urllib.parse import unquote

from aiohttp import web

from coordinator import RESET_REASONS, Coordinator, Declared, Explicit, Minted, fingerprint, is_ours
from gateway_adapter import context
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.representation import session_json
from gateway_adapter.requests import idempotency_key, parse_object, session_id, session_key, single_header

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


async def create_session(request: web.Request) -> web.Response:
    """Opens a session without a turn: under the id or the declared key that the headers name, else as a new one."""
    settings = request.app[context.SETTINGS].coordinator
    named = single_header(request.headers, "X-Hermes-Session-Id", "invalid_session_id")
    sent_key = single_header(request.headers, "X-Hermes-Session-Key", "invalid_session_key")
    key = session_key(sent_key) if sent_key is not None else None
    fields = await _fields(request)
    if "id" in fields:
        wanted = session_id(_text(fields, "id"))
        if named is not None and named != wanted:
            raise InvalidRequest("The header and the body name two sessions.", "id", "conflicting_session")
        named = wanted
    address: Explicit | Declared | Minted = Minted()
    if named is not None:
        address = Explicit(session_id(named))
    elif key is not None:
        address = Declared(settings.source, key)
    by_client = isinstance(address, Declared) and settings.transcripts == "managed"
    view, new = await _coordinator(request).open_session(
        request[context.TENANT], address, history="client" if by_client else "store"
    )
    echoed = {"X-Hermes-Session-Key": key} if isinstance(address, Declared) and key else {}
    headers = {"X-Hermes-Session-Id": view.id, "X-Hermes-Scope": view.scope, **echoed}
    return web.json_response(session_json(view), status=201 if new else 200, headers=headers)


async def reset_session(request: web.Request) -> web.Response:
    """Opens the conversation's next generation. Sent again under the same Idempotency-Key it answers the same."""
    wanted, key = _id(request), idempotency_key(request.headers)
    fields = await _fields(request)
    reason = _text(fields, "reason") if "reason" in fields else "session_reset"
    if reason not in RESET_REASONS:
        raise InvalidRequest(f"reason must be one of {', '.join(sorted(RESET_REASONS))}.", "reason", "invalid_reason")
    expected = fields.get("expected")
    if (
        isinstance(expected, bool)
        or not isinstance(expected, str | int | None)
        or (isinstance(expected, str) and not (expected and expected.isascii()))
    ):
        raise InvalidRequest("expected must be a session id or a generation.", "expected", "invalid_expected")
    if not is_ours(wanted):
        raise InvalidRequest(
            "A session under an id that the client chose has no next generation.", "id", "invalid_session_id"
        )
    reset = await _coordinator(request).reset_session(
        request[context.TENANT],
        Explicit(wanted),
        reason=reason,
        expected=expected,
        idempotency_key=key,
        fingerprint=fingerprint("session.reset", wanted, reason, str(expected)),
    )
    body = {
        "id": reset.ended_session_id or wanted,
        "object": "session.reset",
        "reason": reset.reason,
        "generation": reset.generation,
        "session_id": reset.session_id,
    }
    return web.json_response(body)


async def fork_session(request: web.Request) -> web.Response:
    """Opens a new session that starts with a copy of this one's transcript, under a scope of its own."""
    wanted = _id(request)
    view = await _coordinator(request).fork_session(request[context.TENANT], wanted)
    headers = {"X-Hermes-Session-Id": view.id, "X-Hermes-Scope": view.scope}
    return web.json_response({**session_json(view), "parent": wanted}, status=201, headers=headers)


async def cancel_session(request: web.Request) -> web.Response:
    """Asks the session's live turns to stop, whichever replica holds them; the session stays."""
    wanted = _id(request)
    turns = await _coordinator(request).cancel_session(request[context.TENANT], wanted)
    return web.json_response({"id": wanted, "object": "session.cancelled", "turns": turns})


async def get_messages(request: web.Request) -> web.Response:
    """The stored transcript, each message byte for byte as it was sent."""
    wanted = _id(request)
    messages = await _coordinator(request).messages(request[context.TENANT], wanted)
    head = json.dumps({"object": "list", "session_id": wanted}).encode()[:-1]
    return web.Response(body=head + b', "data": [' + b", ".join(messages) + b"]}", content_type="application/json")


def _coordinator(request: web.Request) -> Coordinator:
    return request.app[context.COORDINATOR]


def _id(request: web.Request) -> str:
    # Not from match_info: what is no UTF-8 stays quoted there, and would look like an id that is spelled so.
    segment = request.rel_url.raw_path.split("/")[3]
    return session_id(unquote(segment, errors="surrogateescape"))


async def _fields(request: web.Request) -> dict[str, object]:
    """The members of a body that may be missing."""
    raw = await context.read_body(request)
    return parse_object(raw) if raw.strip() else {}


def _text(fields: dict[str, object], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string.", name, f"invalid_{'session_id' if name == 'id' else name}")
    return value


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
