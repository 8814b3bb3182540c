"""Requests, answers and streams that several tests are about."""

import json
from typing import Any

from hypothesis import settings
from pydantic import TypeAdapter

from gateway_adapter.responses.request import parse_responses
from gateway_adapter.responses.streaming import ResponseEvents
from gateway_adapter.sse import DONE, event

UNTIMED = settings(deadline=None)  # the client's models are built when they are first used

TURN = "0123456789abcdef0123456789abcdef"
RESPONSE_ID = f"resp_m00112233445566778899aabb_{TURN}"
CREATED_AT = 1_700_000_000

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9007199254740993}}},
    "strict": True,
}
MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": "Hello \x00 \U0001f642 \ud83d wörld",
    "reasoning_content": "Because.",
    "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "add", "arguments": '{"n": 9007199254740993}'}},
        {"id": "call_b", "type": "function", "function": {"name": "now", "arguments": ""}},
    ],
}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 5,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def parse(**fields):
    """The request with these members, and a model and an input where they name none."""
    return parse_responses(json.dumps({"model": "m", "input": "Hi"} | fields).encode())


def answer(message, finish_reason="stop", **fields):
    """A JSON chat answer with this message."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    head = {"id": "c1", "object": "chat.completion", "created": 7, "model": "m"}
    return json.dumps(head | {"choices": [choice]} | fields).encode()


def chunk(delta=None, finish_reason=None, /, **fields):
    """An event with one chunk of a chat stream."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return event(json.dumps(head | {"choices": choices} | fields).encode())


def call(index=None, call_id=None, name=None, arguments=None):
    """A delta with a piece of one tool call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"index": index, "id": call_id, "function": function}
    return {"tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


def events_of(request=None, **more):
    """A translator for this request."""
    return ResponseEvents(request or parse(), RESPONSE_ID, CREATED_AT, **more)


def streamed(*blocks, request=None):
    """What a chat stream becomes: its events as the client decodes them, the output, the response."""
    events = events_of(request)
    sent = events.start() + [block for given in (*blocks, DONE) for block in events.add(given)]
    last, output, response = events.finish(CREATED_AT + 1)
    return [told(block) for block in sent + last], output, response


def told(block):
    """The fields of an event block, whose name must be its type."""
    name, data, *rest = block.decode("ascii").split("\n")
    fields = json.loads(data.removeprefix("data: "))
    assert (name, rest) == (f"event: {fields['type']}", ["", ""])
    return fields


def accepted(kind: Any, value: Any) -> Any:
    """The value, once the client's own model has taken it."""
    TypeAdapter(kind).validate_python(value)
    return value
