"""What a chat completion said, as the output of a response: items, usage, and why it ended."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway_adapter import json_text
from gateway_adapter.completions import assistant_message_of

Fields = dict[str, object]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

_INCOMPLETE: Mapping[object, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_TEXT_PARTS = frozenset({"text", "output_text"})


@dataclass(frozen=True, slots=True)
class Output:
    """An answer as a response has it."""

    items: list[Fields]
    usage: Fields | None
    """None when the upstream told none."""
    incomplete: str | None
    """Why the answer broke off, `max_output_tokens` or `content_filter`; None when it did not."""
    message: bytes
    """The assistant's message for the transcript: raw JSON, each tool call under the `call_id` that its item has."""

    @property
    def status(self) -> Literal["completed", "incomplete"]:
        """The status of a response with this output."""
        return "incomplete" if self.incomplete else "completed"


def output_of(chat_answer: bytes, turn: str) -> Output:
    """The output that this JSON answer amounts to; its first choice counts. ValueError when it is no chat answer."""
    raw_message = assistant_message_of(chat_answer)
    answer = json_text.loads(chat_answer) if raw_message is not None else None
    if raw_message is None or not isinstance(answer, dict):
        raise ValueError("this is no chat answer")
    choice = answer["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("tool_calls must be a list of objects")
    parts = _parts_of(message, logprobs_of(choice.get("logprobs")))
    if not (parts or calls):
        parts = [text_part("")]
    incomplete = incomplete_of(choice.get("finish_reason"))
    count = bool(parts) + len(calls)
    statuses = statuses_of(count, incomplete)
    items = [message_item(item_id("msg", turn, 0), statuses[0], parts)] if parts else []
    call_ids: list[str] = []
    for number, call in enumerate(calls, len(items)):
        call_ids.append(call_id_of(call.get("id"), call_ids, turn, number))
        name, arguments = function_of(call)
        items.append(call_item(item_id("fc", turn, number), statuses[number], call_ids[-1], name, arguments))
    return Output(items, usage_of(answer.get("usage")), incomplete, with_call_ids(raw_message, call_ids))


def _parts_of(message: Mapping[str, object], logprobs: list[Fields]) -> list[Fields]:
    """What the message says, in its own order, as it would have been streamed."""
    parts: list[Fields] = []
    for name, value in message.items():
        if name == "content" and (text := text_of(value)):
            parts.append(text_part(text, logprobs))
        elif name == "refusal" and (refusal := text_of(value)):
            parts.append(refusal_part(refusal))
    return parts


def item_id(kind: str, turn: str, number: int) -> str:
    """The id of the item that is this one in its response."""
    return f"{kind}_{turn}_{number}"


def statuses_of(count: int, incomplete: str | None) -> list[ItemStatus]:
    """The status of each of so many items: what breaks off, breaks off in its last one."""
    last: ItemStatus = "incomplete" if incomplete else "completed"
    return ["completed" if number < count else last for number in range(1, count + 1)]


def message_item(item_id: str, status: ItemStatus, content: Sequence[Fields]) -> Fields:
    """The assistant's message."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": [*content]}


def text_part(text: str, logprobs: Sequence[Fields] = ()) -> Fields:
    """A text of the assistant's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*logprobs]}


def refusal_part(refusal: str) -> Fields:
    """A refusal in the assistant's message."""
    return {"type": "refusal", "refusal": refusal}


def call_item(item_id: str, status: ItemStatus, call_id: str, name: str, arguments: str) -> Fields:
    """A function call."""
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def call_id_of(given: object, taken: Collection[str], turn: str, number: int) -> str:
    """The upstream's id of a call; one of ours for servers that give none, or one twice: the call's output names it."""
    return given if isinstance(given, str) and given and given not in taken else item_id("call", turn, number)


def function_of(call: Mapping[str, object]) -> tuple[str, str]:
    """The name and arguments of a tool call, or as much as a delta tells of them."""
    function = call.get("function")
    if not isinstance(function, dict):
        return "", ""
    name, arguments = function.get("name"), function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):  # some servers send the object itself
        arguments = json_text.dumps(arguments).decode("ascii")
    return name if isinstance(name, str) else "", arguments or ""


def text_of(content: object) -> str:
    """The text of an assistant's content: a string, or the text parts among its parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") in _TEXT_PARTS]
    return "".join(text for text in texts if isinstance(text, str))


def incomplete_of(finish_reason: object) -> str | None:
    """Why an answer broke off; None when it did not."""
    return _INCOMPLETE.get(finish_reason) if isinstance(finish_reason, str) else None


def usage_of(usage: object) -> Fields | None:
    """The usage in a response's words; None when there is none."""
    if not isinstance(usage, dict):
        return None
    read, written = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    of_read, of_written = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": _count(of_read, "cached_tokens"),
            "cache_write_tokens": _count(of_read, "cache_write_tokens"),
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": _count(of_written, "reasoning_tokens")},
        "total_tokens": _count(usage, "total_tokens") or read + written,
    }


def _count(counts: object, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def logprobs_of(logprobs: object) -> list[Fields]:
    """The log probabilities of a choice's text tokens."""
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [
        _logprob(token) | {"top_logprobs": [_logprob(top) for top in _tokens(token.get("top_logprobs"))]}
        for token in _tokens(tokens)
    ]


def _tokens(value: object) -> list[Fields]:
    """Those that can be told on: a server that has no number may say so in its own way."""
    tokens = [token for token in value if isinstance(token, dict)] if isinstance(value, list) else []
    return [token for token in tokens if isinstance(token.get("token"), str) and _is_number(token.get("logprob"))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < math.inf


def _logprob(token: Fields) -> Fields:
    octets = token.get("bytes")
    return {
        "token": token["token"],
        "bytes": octets if isinstance(octets, list) else [],
        "logprob": token["logprob"],
    }


def with_call_ids(message: bytes, call_ids: Sequence[str]) -> bytes:
    """The assistant's message with its tool calls under these ids; the very bytes when they are."""
    fields = json_text.loads(message)
    calls = fields.get("tool_calls") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or not calls or [call.get("id") for call in calls] == [*call_ids]:
        return message
    named = [{**call, "id": call_id} for call, call_id in zip(calls, call_ids, strict=True)]
    return json_text.dumps({**fields, "tool_calls": named})
