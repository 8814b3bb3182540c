"""The echo model: answers with the last user text, so that demos and tests need no network."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from gateway_adapter import json_text
from gateway_adapter.executors.base import EVENT_STREAM, JSON, Answer, include_usage
from gateway_adapter.sse import DONE, event

SLOW_MODEL = "echo-slow"
_SLOW_WORD_MS = 100
_WORD = re.compile(r"\S+\s*|\s+")  # a word with the white space after it: put together they are the text again


class EchoExecutor:
    """Streams the last user text word by word; `echo-slow` takes 100 ms a word, any other model none."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing outlives a call."""

    @asynccontextmanager
    async def chat(self, body: bytes, *, stream: bool, headers: Mapping[str, str]) -> AsyncIterator[Answer]:  # noqa: ARG002 - part of the protocol
        """Answer a chat completion request."""
        request = _Request(body)
        if stream:
            yield Answer(200, EVENT_STREAM, {}, events=request.events())
        else:
            yield Answer(200, JSON, {}, body=await request.body())

    async def models(self) -> Answer:
        """The two models."""
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "echo"} for name in ("echo", SLOW_MODEL)]
        return Answer(200, JSON, {}, body=json_text.dumps({"object": "list", "data": models}))


class _Request:
    """One request to the echo model, and the answer it will give."""

    def __init__(self, body: bytes) -> None:
        fields = json_text.loads(body)
        fields = fields if isinstance(fields, dict) else {}
        messages = fields.get("messages")
        messages = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
        self._include_usage = include_usage(fields)
        self._pause_s = _SLOW_WORD_MS / 1000 if fields.get("model") == SLOW_MODEL else 0
        texts = [(message.get("role"), _text(message.get("content"))) for message in messages]
        text = next((text for role, text in reversed(texts) if role == "user"), "")
        self._words = _WORD.findall(text)
        asked, answered = sum(len(text.split()) for _, text in texts), len(text.split())
        self._usage = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),  # noqa: TID251 - shown to clients as the wall clock's, compared with nothing
            "model": fields.get("model"),
        }

    async def body(self) -> bytes:
        words = [word async for word in self._paced()]
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return json_text.dumps(self._head | {"object": "chat.completion", "choices": [choice], "usage": self._usage})

    async def events(self) -> AsyncIterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})
        async for word in self._paced():
            yield self._chunk({"content": word})
        yield self._chunk({}, "stop")
        if self._include_usage:
            yield self._event(choices=[], usage=self._usage)
        yield DONE

    async def _paced(self) -> AsyncIterator[str]:
        for word in self._words:
            await asyncio.sleep(self._pause_s)
            yield word

    def _chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        return self._event(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])

    def _event(self, **fields: object) -> bytes:
        return event(json_text.dumps(self._head | {"object": "chat.completion.chunk"} | fields))


def _text(content: object) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(text for part in parts if isinstance(text := part.get("text"), str))
