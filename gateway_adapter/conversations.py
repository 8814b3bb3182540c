"""`/v1/conversations`: sessions, as clients of the Responses API know them. A conversation's id is its session's."""

import json

from aiohttp import web

from coordinator import Coordinator, Minted, SessionView
from gateway_adapter import context
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.requests import parse_object, session_id
from gateway_adapter.responses import values
from gateway_adapter.responses.conversations import conversation_object, item_objects, items_to_messages


async def create(request: web.Request) -> web.Response:
    """Opens a conversation, with the items and the metadata that it is to start with."""
    fields = await _fields(request)
    coordinator, tenant = _coordinator(request), request[context.TENANT]
    metadata, messages = _metadata(fields), _messages(fields)
    view, _ = await coordinator.open_session(tenant, Minted())
    if metadata or messages:
        await coordinator.edit_session(tenant, view.id, notes=json.dumps(metadata).encode(), messages=messages)
    return web.json_response(conversation_object(view.id, view.created_ms // 1000, metadata))


async def get(request: web.Request) -> web.Response:
    """One conversation."""
    return web.json_response(_shown(await _session(request)))


async def update(request: web.Request) -> web.Response:
    """Replaces its metadata."""
    fields, view = await _fields(request), await _session(request)
    metadata = _metadata(fields)
    await _coordinator(request).edit_session(request[context.TENANT], view.id, notes=json.dumps(metadata).encode())
    return web.json_response(conversation_object(view.id, view.created_ms // 1000, metadata))


async def delete(request: web.Request) -> web.Response:
    """Retires it for good, as a session."""
    wanted = _id(request)
    await _coordinator(request).delete_session(request[context.TENANT], wanted)
    return web.json_response({"id": wanted, "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.Response:
    """What was said in it, oldest first; `order=desc` turns that round."""
    wanted = _id(request)
    items = item_objects(await _coordinator(request).messages(request[context.TENANT], wanted), wanted)
    if request.query.get("order", "asc") == "desc":
        items.reverse()
    return _page(items)


async def add_items(request: web.Request) -> web.Response:
    """Adds items to it, without a turn."""
    fields, wanted = await _fields(request), _id(request)
    messages = _messages(fields)
    if not messages:
        raise InvalidRequest("items must be a list that is not empty.", "items", "invalid_items")
    coordinator, tenant = _coordinator(request), request[context.TENANT]
    await coordinator.edit_session(tenant, wanted, messages=messages)
    every = await coordinator.messages(tenant, wanted)
    before = len(item_objects(every[: len(every) - len(messages)], wanted))
    return _page(item_objects(every, wanted)[before:])


def _page(items: list[dict[str, object]]) -> web.Response:
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return web.json_response({"object": "list", "data": items, **ends, "has_more": False})


def _shown(view: SessionView) -> dict[str, object]:
    return conversation_object(view.id, view.created_ms // 1000, json.loads(view.notes) if view.notes else {})


async def _fields(request: web.Request) -> dict[str, object]:
    raw = await context.read_body(request)
    return parse_object(raw) if raw.strip() else {}


def _metadata(fields: dict[str, object]) -> dict[str, str]:
    return values.metadata(fields.get("metadata")) or {}


def _messages(fields: dict[str, object]) -> list[bytes]:
    items = fields.get("items")
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequest("items must be a list of objects.", "items", "invalid_items")
    return items_to_messages(items)


async def _session(request: web.Request) -> SessionView:
    return await _coordinator(request).session(request[context.TENANT], _id(request))


def _id(request: web.Request) -> str:
    return session_id(request.match_info["id"])


def _coordinator(request: web.Request) -> Coordinator:
    return request.app[context.COORDINATOR]
