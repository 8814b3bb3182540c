"""A replica inside the test's own process, on a real port: what a test asks of it goes over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
import redis
from aiohttp import web

from coordinator import Coordinator, Settings
from gateway_adapter import context
from gateway_adapter.app import Runner, make_app
from gateway_adapter.settings import GatewaySettings
from tests.support import clients
from tests.support.clients import Reply
from tests.support.process import LOCALHOST
from tests.support.servers import StoreServer
from tests.support.snapshot import snapshot
from tests.support.upstream import StubUpstream
from tests.support.waiting import until

_OF_THE_COORDINATOR = frozenset(field.name for field in dataclasses.fields(Settings))


@dataclasses.dataclass(frozen=True)
class Gateway:
    """One running replica. The options of its calls are those of `tests.support.clients`."""

    http: aiohttp.ClientSession
    url: str
    app: web.Application

    @property
    def coordinator(self) -> Coordinator:
        """Its coordinator: for what has no address over HTTP."""
        return self.app[context.COORDINATOR]

    async def chat(self, messages: Sequence[Mapping[str, Any]] | str, **options: Any) -> Reply:
        """One chat completion."""
        return await clients.chat(self.http, self.url, messages, **options)

    async def request(self, method: str, path: str, **options: Any) -> Reply:
        """Any request."""
        return await clients.request(self.http, method, self.url + path, **options)

    async def session(self, session_id: str, **options: Any) -> Reply:
        """`GET /api/sessions/{id}`."""
        return await self.request("GET", session_path(session_id), **options)

    async def delete(self, session_id: str, query: str = "", **options: Any) -> Reply:
        """`DELETE /api/sessions/{id}`."""
        return await self.request("DELETE", session_path(session_id) + query, **options)


def session_path(session_id: str) -> str:
    """The path of a session, whatever its id is made of."""
    return f"/api/sessions/{quote(session_id, safe='')}"


@asynccontextmanager
async def running(http: aiohttp.ClientSession, **settings: Any) -> AsyncIterator[Gateway]:
    """A replica set up by `GatewaySettings` and `Settings`, which are told apart by their names."""
    coordinator = {name: value for name, value in settings.items() if name in _OF_THE_COORDINATOR}
    own = {name: value for name, value in settings.items() if name not in _OF_THE_COORDINATOR}
    app = make_app(GatewaySettings(coordinator=Settings(**coordinator), **own))
    runner = Runner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOCALHOST, 0).start()
        yield Gateway(http, f"http://{LOCALHOST}:{runner.addresses[0][1]}", app)
    finally:
        await runner.cleanup()


def dump(server: StoreServer) -> dict[bytes, Any]:
    """Everything the store holds of the tenants, as entries of `tests.support.snapshot`."""
    with redis.Redis.from_url(server.url) as client:
        return {**snapshot(client, match="coord1:{*")}


def user(content: Any) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    """An assistant message."""
    return {"role": "assistant", "content": content}


async def hold(
    gateway: Gateway, upstream: StubUpstream, messages: Sequence[Mapping[str, Any]] | str, **options: Any
) -> asyncio.Task[Reply]:
    """A request whose upstream call runs until the test releases it."""
    running = upstream.running
    asking = asyncio.create_task(gateway.chat(messages, **{"model": "gate", **options}))
    await upstream.until(lambda up: up.running == running + 1)
    return asking


async def queued(gateway: Gateway, session_id: str, count: int = 1) -> None:
    """Wait until so many requests wait for the session."""

    async def enough() -> bool:
        waiting: int = (await gateway.session(session_id)).json()["queued"]
        return waiting == count

    await until(enough, what=f"a queue of {count}")


def end_lease(server: StoreServer) -> None:
    """Let the leases of all running turns end, as they do a while after their replica died."""
    key = "coord1:{default}:running"
    for turn in server.cli("ZRANGE", key, 0, -1):
        server.cli("ZADD", key, "XX", 1, turn)


def said(reply: Reply) -> tuple[Any, ...]:
    """What an answer says, in either form: ids, text, tool calls, finish reason and usage."""
    if not reply.headers["Content-Type"].startswith("text/event-stream"):
        body = reply.json()
        (choice,) = body["choices"]
        message = choice["message"]
        made = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
        return body["id"], message["content"] or "", made, choice["finish_reason"], body.get("usage")
    chunks = [json.loads(event) for event in reply.events() if event != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    calls: dict[int, dict[str, str]] = {}
    for delta in (part for choice in choices for part in choice["delta"].get("tool_calls") or []):
        call = calls.setdefault(delta["index"], {"id": delta.get("id"), "name": "", "arguments": ""})
        for name in ("name", "arguments"):
            call[name] += delta["function"].get(name) or ""
    listed = [(call["id"], {"name": call["name"], "arguments": call["arguments"]}) for call in calls.values()]
    (finish,) = {choice["finish_reason"] for choice in choices} - {None}
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return chunks[0]["id"], reply.text(), listed, finish, usage[0] if usage else None


def check_envelope(reply: Reply, status: int, code: str) -> None:
    """The refusal is what OpenAI clients expect, and says that it is final."""
    assert (reply.status, reply.code) == (status, code), reply.body
    assert reply.headers["Content-Type"].startswith("application/json")
    assert set(reply.json()) == {"error"}
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert reply.headers["x-should-retry"] == "false"
