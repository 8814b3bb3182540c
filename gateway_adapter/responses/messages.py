"""From input items to the messages of a chat completion."""

from collections.abc import Iterable, Mapping, Sequence

from gateway_adapter import json_text

_Message = dict[str, object]


def chat_messages(items: Iterable[Mapping[str, object]]) -> list[bytes]:
    """The items, as `input_items` gives them, as chat messages: raw JSON each.

    Function calls in a row are one assistant message with `tool_calls`, together with an assistant's message directly
    before them, since a chat knows them as one. Their outputs are `tool` messages.
    """
    messages: list[_Message] = []
    calls: list[_Message] | None = None  # of the last message, while it may take more
    for item in items:
        match item:
            case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
                if calls is None:
                    if not messages or messages[-1]["role"] != "assistant":
                        messages.append({"role": "assistant", "content": None})
                    calls = []
                    messages[-1]["tool_calls"] = calls
                function = {"name": name, "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
                continue
            case {"type": "function_call_output", "call_id": call_id, "output": output}:
                content = _content(output) if isinstance(output, list) else output
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case {"role": "assistant", "content": list(parts)}:
                messages.append(_of_assistant(parts))
            case {"role": role, "content": list(parts)}:
                messages.append({"role": role, "content": _content(parts)})
        calls = None
    return [json_text.dumps(message) for message in messages]


def _of_assistant(parts: Sequence[Mapping[str, object]]) -> _Message:
    refusals = [str(part["refusal"]) for part in parts if part["type"] == "refusal"]
    texts = [part for part in parts if part["type"] != "refusal"]
    message: _Message = {"role": "assistant", "content": _content(texts) if texts or not refusals else None}
    return message | ({"refusal": "".join(refusals)} if refusals else {})


def _content(parts: Sequence[Mapping[str, object]]) -> object:
    """One text is a string, which every upstream takes; anything more is a list of parts."""
    match parts:
        case []:
            return ""
        case [{"text": text}]:
            return text
    return [_part(part) for part in parts]


def _part(part: Mapping[str, object]) -> Mapping[str, object]:
    match part:
        case {"type": "input_image", "image_url": str(url), "detail": detail}:
            return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail != "auto" else {})}
        case {"type": "input_image", "file_id": file_id}:  # a chat takes an uploaded image as it takes a file
            return {"type": "file", "file": {"file_id": file_id}}
        case {"type": "input_file", **named}:
            return {"type": "file", "file": named}
    return {"type": "text", "text": part["text"]}
