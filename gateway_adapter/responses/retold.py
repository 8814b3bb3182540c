"""A finished response told as a stream: for one that was asked for as JSON and is asked for as events later."""

import json
from collections.abc import Iterator

from gateway_adapter.responses.streaming import event_block

_Event = tuple[str, dict[str, object]]


def retold(body: bytes) -> list[bytes]:
    """The event blocks that end in this response object, numbered from 0."""
    response = json.loads(body)
    return [event_block(kind, number, fields) for number, (kind, fields) in enumerate(_events(response))]


def _events(response: dict[str, object]) -> Iterator[_Event]:
    begun = {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "completed_at": None,
        "incomplete_details": None,
    }
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    output = response["output"]
    for index, item in enumerate(output if isinstance(output, list) else []):
        yield from _message(item, index) if item["type"] == "message" else _call(item, index)
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{response['status']}", {"response": response}


def _message(item: dict[str, object], index: int) -> Iterator[_Event]:
    yield (
        "response.output_item.added",
        {"output_index": index, "item": {**item, "status": "in_progress", "content": []}},
    )
    content = item["content"]
    for number, part in enumerate(content if isinstance(content, list) else []):
        kind = "refusal" if part["type"] == "refusal" else "text"
        name = "refusal" if kind == "refusal" else "output_text"
        where = {"item_id": item["id"], "output_index": index, "content_index": number}
        spare = {} if kind == "refusal" else {"logprobs": part.get("logprobs") or []}
        yield "response.content_part.added", {**where, "part": {**part, kind: ""}}
        yield f"response.{name}.delta", {**where, "delta": part[kind], **spare}
        yield f"response.{name}.done", {**where, kind: part[kind], **spare}
        yield "response.content_part.done", {**where, "part": part}


def _call(item: dict[str, object], index: int) -> Iterator[_Event]:
    where = {"item_id": item["id"], "output_index": index}
    said = item.get("arguments", "")
    yield (
        "response.output_item.added",
        {"output_index": index, "item": {**item, "status": "in_progress", "arguments": ""}},
    )
    yield "response.function_call_arguments.delta", {**where, "delta": said}
    yield "response.function_call_arguments.done", {**where, "arguments": said, "name": item.get("name")}
