"""What a request to `/v1/responses` says, and the chat completion that it becomes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gateway_adapter import json_text
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.requests import parse_object, session_id
from gateway_adapter.responses.chat_options import chat_options
from gateway_adapter.responses.input_items import input_items
from gateway_adapter.responses.values import choice, flag, integer, mapping, metadata, some_text, text, wrong

_FORM_ONLY = frozenset({"stream", "stream_options"})  # how the answer is sent, not what is asked
_ID_LIMIT = 256  # characters of a response id; ours have 62


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request to make a response. `canonical` is the same for bodies that ask the same, in whatever form."""

    raw: bytes
    fields: dict[str, object]
    model: str
    stream: bool
    background: bool
    store: bool
    previous_response_id: str | None
    conversation: str | None
    """The id of the conversation it names."""
    instructions: str | None
    metadata: dict[str, str] | None
    input_items: list[dict[str, object]]
    """The new input as items in one form; empty when it leaves everything to its conversation or chain."""
    canonical: bytes
    options: dict[str, bytes]
    """The members of the chat completion that say how to answer: raw JSON by name."""


def parse_responses(raw: bytes) -> ResponsesRequest:
    """Read a request to make a response; InvalidRequest names what is wrong with it."""
    fields = parse_object(raw)
    canonical = _canonical(fields)
    _check_unused(fields)
    previous, conversation = _previous(fields), _conversation(fields)
    if previous is not None and conversation is not None:
        raise InvalidRequest(
            "previous_response_id and conversation are two addresses: send one of them.",
            "conversation",
            "conflicting_session",
        )
    store = flag(fields.get("store"), "store")
    background = bool(flag(fields.get("background"), "background"))
    if background and store is False:
        raise wrong("background", "needs store: what nobody may keep cannot be fetched later")
    items = input_items(fields.get("input"), "input")
    if not items and previous is None and conversation is None:
        raise wrong("input", "must be a string or an array with at least one item")
    return ResponsesRequest(
        raw=raw,
        fields=fields,
        model=some_text(fields.get("model"), "model"),
        stream=bool(flag(fields.get("stream"), "stream")),
        background=background,
        store=store is not False,
        previous_response_id=previous,
        conversation=conversation,
        instructions=text(fields.get("instructions"), "instructions"),
        metadata=metadata(fields.get("metadata")),
        input_items=items,
        canonical=canonical,
        options=chat_options(fields, json_text.members(raw)),
    )


def chat_body(request: ResponsesRequest, messages: list[bytes], *, stream: bool) -> bytes:
    """The chat completion request with these raw JSON messages: the transcript so far, then the new input.

    The instructions go first, of this request alone. A stream is asked to tell its usage.
    """
    if request.instructions:
        messages = [json_text.dumps({"role": "system", "content": request.instructions}), *messages]
    members = {"model": json_text.dumps(request.model), "messages": json_text.from_items(messages), **request.options}
    if stream:
        members |= {"stream": b"true", "stream_options": b'{"include_usage":true}'}
    return json_text.from_members(members)


def _canonical(fields: Mapping[str, object]) -> bytes:
    asked = {name: value for name, value in fields.items() if name not in _FORM_ONLY}
    try:
        return json.dumps(asked, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError:  # 1e999 reads as infinity, which no JSON can tell the client or the upstream again
        raise InvalidRequest("The body holds a number that is too large.", None, "invalid_json") from None


def _check_unused(fields: Mapping[str, object]) -> None:
    """What no chat completion has a word for may be right or wrong all the same; a prompt by name would be missing."""
    mapping(fields.get("stream_options"), "stream_options")
    choice(fields.get("truncation"), "truncation", ("auto", "disabled"))
    integer(fields.get("max_tool_calls"), "max_tool_calls", 0)
    if fields.get("prompt") is not None:
        raise wrong("prompt", "cannot be resolved: send instructions and input")


def _previous(fields: Mapping[str, object]) -> str | None:
    """The id, when it is a text that a store can be asked for; most texts will be found nowhere."""
    previous = text(fields.get("previous_response_id"), "previous_response_id")
    if previous is None:
        return None
    try:
        previous.encode("utf-8")
    except UnicodeEncodeError:
        raise wrong("previous_response_id", "must be valid UTF-8") from None
    if not 1 <= len(previous) <= _ID_LIMIT:
        raise wrong("previous_response_id", f"must have 1 to {_ID_LIMIT} characters")
    return previous


def _conversation(fields: Mapping[str, object]) -> str | None:
    value = fields.get("conversation")
    if value is None:
        return None
    if isinstance(value, dict):
        return session_id(some_text(value.get("id"), "conversation.id"))
    if not isinstance(value, str):
        raise wrong("conversation", "must be the id of a conversation, or an object with its id")
    return session_id(some_text(value, "conversation"))
