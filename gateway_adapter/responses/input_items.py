"""Input items, as `/v1/responses` and `/v1/conversations` are sent them: read, checked, and put into one form."""

from gateway_adapter.responses.values import mapping, sequence, some_text, text, wrong

Item = dict[str, object]

_ROLES = frozenset({"user", "assistant", "system", "developer"})
_TEXT = frozenset({"input_text", "output_text", "text"})
_DETAIL = "auto"  # OpenAI's default


def input_items(value: object, param: str) -> list[Item]:
    """The items of `value`: an array of items, a string for one user message, or None for none.

    Each comes back with its `type` and all that its kind needs, and nothing else: messages with their content as parts
    (`input_text`, `input_image`, `input_file`; `output_text`, `refusal` for the assistant's), `function_call` and
    `function_call_output`. Reasoning is left out: no chat upstream takes it. InvalidRequest for everything else.
    """
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, param)]
    if not isinstance(value, list | None):
        raise wrong(param, "must be a string or an array of items")
    items = [_item(item, f"{param}[{index}]") for index, item in enumerate(value or [])]
    return [item for item in items if item is not None]


def _item(item: object, where: str) -> Item | None:
    if not isinstance(item, dict):
        raise wrong(where, "must be an object")
    match item.get("type", "message" if "role" in item else None):
        case "message":
            return _message(item, where)
        case "function_call":
            return _call(item, where)
        case "function_call_output":
            return _call_output(item, where)
        case "reasoning":
            return None
        case "item_reference" | None:
            raise wrong(where, "must be an item itself: references to items are not resolved")
    raise wrong(f"{where}.type", "must be message, function_call, function_call_output or reasoning")


def _message(item: Item, where: str) -> Item:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(f"{where}.role", "must be user, assistant, system or developer")
    content, where = item.get("content"), f"{where}.content"
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise wrong(where, "must be a string or an array of parts")
    read = _output_part if role == "assistant" else _input_part
    parts = [read(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return {"type": "message", "role": role, "content": parts}


def _call(item: Item, where: str) -> Item:
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        raise wrong(f"{where}.arguments", "must be a string")
    return {
        "type": "function_call",
        "call_id": some_text(item.get("call_id"), f"{where}.call_id"),
        "name": some_text(item.get("name"), f"{where}.name"),
        "arguments": arguments,
    }


def _call_output(item: Item, where: str) -> Item:
    call_id = some_text(item.get("call_id"), f"{where}.call_id")
    output, where = item.get("output"), f"{where}.output"
    if not isinstance(output, str):
        if output is None:
            raise wrong(where, "must be a string or an array of input_text parts")
        parts = [_input_part(part, f"{where}[{index}]") for index, part in enumerate(sequence(output, where))]
        if any(part["type"] != "input_text" for part in parts):
            raise wrong(where, "must hold texts only: a chat upstream takes no others from a tool")
        output = parts
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _input_part(part: object, where: str) -> Item:
    fields, kind = _part(part, where)
    if kind in _TEXT:
        return {"type": "input_text", "text": _said(fields, "text", where)}
    if kind == "input_image":
        return _image(fields, where)
    if kind == "input_file":
        return _file(fields, where)
    raise wrong(f"{where}.type", "must be input_text, input_image or input_file")


def _output_part(part: object, where: str) -> Item:
    fields, kind = _part(part, where)
    if kind in _TEXT:
        return {"type": "output_text", "text": _said(fields, "text", where), "annotations": [], "logprobs": []}
    if kind == "refusal":
        return {"type": "refusal", "refusal": _said(fields, "refusal", where)}
    raise wrong(f"{where}.type", "must be output_text or refusal in an assistant's message")


def _part(part: object, where: str) -> tuple[Item, str]:
    fields = mapping(part, where) or {}
    return fields, some_text(fields.get("type"), f"{where}.type")


def _said(fields: Item, name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise wrong(f"{where}.{name}", "must be a string")
    return value


def _image(fields: Item, where: str) -> Item:
    url, file_id, detail = (text(fields.get(name), f"{where}.{name}") for name in ("image_url", "file_id", "detail"))
    if not (url or file_id):
        raise wrong(where, "must have an image_url or a file_id")
    return {"type": "input_image", "detail": detail or _DETAIL, "file_id": file_id, "image_url": url}


def _file(fields: Item, where: str) -> Item:
    if fields.get("file_url") is not None:
        raise wrong(f"{where}.file_url", "is not fetched: send file_data or a file_id")
    named = {name: text(fields.get(name), f"{where}.{name}") for name in ("file_id", "filename", "file_data")}
    if not (named["file_id"] or named["file_data"]):
        raise wrong(where, "must have file_data or a file_id")
    return {"type": "input_file", **{name: value for name, value in named.items() if value}}
