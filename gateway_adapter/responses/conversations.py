"""The objects that `/v1/conversations` answers with: a transcript of chat messages seen as items."""

from collections.abc import Mapping

from gateway_adapter import json_text
from gateway_adapter.responses.input_items import input_items
from gateway_adapter.responses.messages import chat_messages
from gateway_adapter.responses.outputs import Fields, function_of, item_id, refusal_part, text_part

_ROLES = frozenset({"user", "assistant", "system", "developer"})
_DETAILS = frozenset({"low", "high", "auto", "original"})


def conversation_object(conversation_id: str, created_at: int, metadata: Mapping[str, str] | None = None) -> Fields:
    """A conversation; the time is in seconds since the epoch."""
    return {
        "id": conversation_id,
        "object": "conversation",
        "created_at": created_at,
        "metadata": dict(metadata or {}),
    }


def items_to_messages(items: object) -> list[bytes]:
    """The chat messages, raw JSON each, of a body's `items`; InvalidRequest for what is no list of items."""
    return chat_messages(input_items(items, "items"))


def item_objects(messages: list[bytes], conversation_id: str) -> list[Fields]:
    """The items of a whole transcript: each message, function call and output. An item's id tells its place in it."""
    owner = conversation_id.partition("_")[2] or conversation_id
    items = [item for message in messages for item in _items(json_text.loads(message))]
    return [{"id": item_id("item", owner, number), **item} for number, item in enumerate(items)]


def _items(message: object) -> list[Fields]:
    match message:
        case {"role": "tool", **rest}:
            content = rest.get("content")
            call_id = _text(rest.get("tool_call_id"))
            output = content if isinstance(content, str) else _parts(content, "tool")
            return [{"type": "function_call_output", "status": "completed", "call_id": call_id, "output": output}]
        case {"role": str(role), **rest}:
            parts = _parts(rest.get("content"), role)
            if role == "assistant" and (refusal := _text(rest.get("refusal"))):
                parts.append(refusal_part(refusal))
            calls = rest.get("tool_calls")
            items = [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
            if parts or not items:
                role = role if role in _ROLES else "unknown"
                items.insert(0, {"type": "message", "status": "completed", "role": role, "content": parts})
            return items
    return []


def _call(call: Fields) -> Fields:
    custom = call.get("custom")
    if isinstance(custom, dict):
        said = {"name": _text(custom.get("name")), "input": _text(custom.get("input"))}
        return {"type": "custom_tool_call", "call_id": _text(call.get("id")), **said}
    name, arguments = function_of(call)
    return {
        "type": "function_call",
        "status": "completed",
        "call_id": _text(call.get("id")),
        "name": name,
        "arguments": arguments,
    }


def _parts(content: object, role: str) -> list[Fields]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    return [_part(part, role) for part in content] if isinstance(content, list) else []


def _part(part: object, role: str) -> Fields:
    match part:
        case {"text": str(text)}:
            return _text_part(text, role)
        case {"type": "refusal", "refusal": str(refusal)} if role == "assistant":
            return refusal_part(refusal)
        case {"type": "image_url", "image_url": {"url": str(url)} as image}:
            detail = image.get("detail")
            detail = detail if isinstance(detail, str) and detail in _DETAILS else "auto"
            return {"type": "input_image", "detail": detail, "file_id": None, "image_url": url}
        case {"type": "file", "file": dict(file)}:
            names = ("file_id", "filename", "file_data")
            return {"type": "input_file"} | {name: file[name] for name in names if isinstance(file.get(name), str)}
    # What items have no kind for, such as audio, is shown as the chat has it.
    return _text_part(json_text.dumps(part).decode("ascii"), role)


def _text_part(text: str, role: str) -> Fields:
    return text_part(text) if role == "assistant" else {"type": "input_text", "text": text}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
