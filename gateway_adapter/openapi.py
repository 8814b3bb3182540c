"""`/openapi.json`: what there is to call, told by the router itself, so that nothing can be missing from it."""

import re
from importlib.metadata import PackageNotFoundError, version
from inspect import getdoc

from aiohttp import web

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}

_HEADERS = {
    "X-Hermes-Session-Id": "The session that the request belongs to.",
    "X-Hermes-Session-Key": "The key of the declared conversation that it belongs to.",
    "X-Hermes-Turn-Policy": "What to do when the conversation is busy: wait, reject or interrupt.",
    "Idempotency-Key": "Makes the request safe to send again: 1 to 255 visible ASCII characters.",
    "Last-Event-ID": "The number of the last event that arrived of a stream that was cut off.",
}
_TURNS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/runs"})


async def get(request: web.Request) -> web.Response:
    """The description, as OpenAPI 3.1."""
    return web.json_response(describe(request.app))


def describe(app: web.Application) -> dict[str, object]:
    """Every route of the application, with the first line of its handler's docstring."""
    paths: dict[str, dict[str, object]] = {}
    for route in app.router.routes():
        if route.resource is None or route.method == "HEAD":
            continue
        path = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.resource.canonical)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "session-coordinator gateway", "version": _version()},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _operation(route: web.AbstractRoute, path: str) -> dict[str, object]:
    said = (getdoc(route.handler) or "").splitlines()
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    if path in _TURNS and route.method == "POST":
        parameters += [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS.items()
        ]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, object] = {
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".rstrip("_"),
        "summary": said[0] if said else path,
        "responses": {
            "200": {"description": "As asked."},
            "default": {"description": "Why not.", "content": error},
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if route.method == "POST":
        operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return operation


def _version() -> str:
    try:
        return version("session-coordinator")
    except PackageNotFoundError:
        return "0"
