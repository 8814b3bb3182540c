"""What a client of `/v1/responses` and `/v1/runs` does, in few words."""

from __future__ import annotations

from typing import Any

from tests.adapter.gateway import Gateway
from tests.support.clients import Reply
from tests.support.upstream import StubUpstream
from tests.support.waiting import until

GONE = "ses_m" + 24 * "0" + "_1_" + 16 * "0"
"""An id of our pattern that never was."""

_OPTIONS = ("key", "session_id", "session_key", "api_key", "headers")


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Members of the body, and options of the request."""
    sent = {name: options.pop(name) for name in _OPTIONS if name in options}
    return options, sent


async def respond(gateway: Gateway, text: Any, *, model: str = "ok", **options: Any) -> Reply:
    """`POST /v1/responses`; what is no option of a request is a member of its body."""
    body, sent = split(options)
    return await gateway.request("POST", "/v1/responses", json={"model": model, "input": text, **body}, **sent)


async def run(gateway: Gateway, text: Any, *, model: str = "ok", session: str | None = None, **options: Any) -> Reply:
    """`POST /v1/runs`; `session` is the body's `session_id`."""
    body, sent = split(options)
    named = {"session_id": session} if session is not None else {}
    return await gateway.request("POST", "/v1/runs", json={"model": model, "input": text, **named, **body}, **sent)


def text_of(response: dict[str, Any]) -> str:
    """The text of a response's messages."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def said(upstream: StubUpstream, number: int = -1) -> list[str]:
    """The texts of the messages that a call of the upstream's was given."""
    return [str(message.get("content")) for message in upstream.calls[number].json()["messages"]]


async def settled(gateway: Gateway, path: str, **options: Any) -> dict[str, Any]:
    """What is told of a response or run once it has ended."""
    found: dict[str, Any] = {}

    async def ended() -> bool:
        reply = await gateway.request("GET", path, **options)
        assert reply.status == 200, reply.body
        found.update(reply.json())
        return found["status"] not in ("queued", "in_progress", "running")

    await until(ended, what="the end of " + path, timeout_s=10)
    return found


async def in_state(gateway: Gateway, path: str, status: str) -> None:
    """Wait until a response or run is told in this state."""

    async def reached() -> bool:
        found: str = (await gateway.request("GET", path)).json()["status"]
        return found == status

    await until(reached, what=f"{path} {status}", timeout_s=10)
