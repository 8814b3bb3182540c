"""Tiny HTTP clients for tests: one call, one value with all that came back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

TIMEOUT_S = 15.0
"""Below the limit of a test, so that a hanging answer fails with a name."""


@dataclass(frozen=True)
class Reply:
    """A whole answer; header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def session_id(self) -> str | None:
        """The session the gateway says the turn ran in."""
        return self.headers.get("X-Hermes-Session-Id")

    @property
    def replayed(self) -> bool:
        """Whether this is the stored answer of an earlier request."""
        return self.headers.get("Idempotency-Replayed") == "true"

    @property
    def code(self) -> str | None:
        """`error.code` of a refusal, None of anything else."""
        if not self.headers.get("Content-Type", "").startswith("application/json"):
            return None
        body = self.json()
        return body["error"]["code"] if isinstance(body, dict) and "error" in body else None

    def events(self) -> list[str]:
        """The `data` of each event of a stream, oldest first, `[DONE]` included; comments are left out."""
        blocks = self.body.decode().replace("\r\n", "\n").split("\n\n")
        lines = ([line for line in block.split("\n") if line.startswith("data:")] for block in blocks)
        return ["\n".join(line[5:].removeprefix(" ") for line in data) for data in lines if data]

    def text(self) -> str:
        """The assistant's text of a chat answer, JSON or stream."""
        if not self.headers.get("Content-Type", "").startswith("text/event-stream"):
            return self.json()["choices"][0]["message"]["content"] or ""
        chunks = [json.loads(event) for event in self.events() if event != "[DONE]"]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
        return "".join(delta.get("content") or "" for delta in deltas)


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    json: Any = None,
    key: str | None = None,
    session_id: str | None = None,
    session_key: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one request and read the whole answer. `key` is the Idempotency-Key, `api_key` the bearer token."""
    known = {
        "Idempotency-Key": key,
        "X-Hermes-Session-Id": session_id,
        "X-Hermes-Session-Key": session_key,
        "Authorization": f"Bearer {api_key}" if api_key else None,
    }
    sent = {name: value for name, value in known.items() if value is not None} | dict(headers or {})
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with session.request(method, url, json=json, headers=sent, timeout=timeout) as response:
        return Reply(response.status, response.headers.copy(), await response.read())


async def chat(
    session: aiohttp.ClientSession,
    base_url: str,
    messages: Sequence[Mapping[str, Any]] | str,
    *,
    model: str = "ok",
    stream: bool = False,
    body: Mapping[str, Any] | None = None,
    key: str | None = None,
    session_id: str | None = None,
    session_key: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One chat completion at `base_url` (a replica's address, without /v1); a string is one user message.

    `model` is also the mode of the stub upstream; `body` adds fields such as `user` or `tools`.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    content = {"model": model, "messages": messages} | ({"stream": True} if stream else {}) | dict(body or {})
    return await request(
        session,
        "POST",
        f"{base_url}/v1/chat/completions",
        json=content,
        key=key,
        session_id=session_id,
        session_key=session_key,
        api_key=api_key,
        headers=headers,
    )


class RoundRobin:
    """A load balancer without stickiness: `next(urls)` is the address for the next request."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = itertools.cycle(urls)

    def __iter__(self) -> RoundRobin:
        return self

    def __next__(self) -> str:
        return next(self._urls)
