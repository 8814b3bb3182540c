"""What a Responses request asks of the model, in the words of a chat completion. Values keep their own bytes."""

from collections.abc import Mapping

from gateway_adapter import json_text
from gateway_adapter.responses.values import (
    choice,
    flag,
    integer,
    mapping,
    number,
    sequence,
    some_text,
    text,
    wrong,
)  # fmt: skip

_NUMBERS = ("temperature", "top_p")
_TEXTS = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")
_OF_FUNCTION = ("name", "description", "parameters", "strict")
_OF_SCHEMA = ("name", "description", "schema", "strict")
_CHOICES = ("none", "auto", "required")


def chat_options(fields: Mapping[str, object], raw: Mapping[str, bytes]) -> dict[str, bytes]:
    """The members of the chat completion that stand for these members of a Responses request; InvalidRequest.

    `raw` holds the same members as `fields`, each as its own JSON bytes. What was left out, or is null, is left out.
    """
    for name in _NUMBERS:
        number(fields.get(name), name)
    for name in _TEXTS:
        text(fields.get(name), name)
    options = {name: raw[name] for name in (*_NUMBERS, *_TEXTS) if fields.get(name) is not None}
    if integer(fields.get("max_output_tokens"), "max_output_tokens", 1) is not None:
        options["max_completion_tokens"] = raw["max_output_tokens"]
    reasoning = mapping(fields.get("reasoning"), "reasoning") or {}
    text(reasoning.get("summary"), "reasoning.summary")
    if text(reasoning.get("effort"), "reasoning.effort") is not None:
        options["reasoning_effort"] = json_text.members(raw["reasoning"])["effort"]
    return options | _text(fields, raw) | _logprobs(fields, raw) | _tools(fields, raw)


def _logprobs(fields: Mapping[str, object], raw: Mapping[str, bytes]) -> dict[str, bytes]:
    asked = [text(name, "include") for name in sequence(fields.get("include"), "include")]
    top = {"top_logprobs": raw["top_logprobs"]} if integer(fields.get("top_logprobs"), "top_logprobs", 0) else {}
    return {"logprobs": b"true"} | top if top or "message.output_text.logprobs" in asked else {}


def _text(fields: Mapping[str, object], raw: Mapping[str, bytes]) -> dict[str, bytes]:
    asked = mapping(fields.get("text"), "text")
    if asked is None:
        return {}
    own = json_text.members(raw["text"])
    options: dict[str, bytes] = {}
    if text(asked.get("verbosity"), "text.verbosity") is not None:
        options["verbosity"] = own["verbosity"]
    form = mapping(asked.get("format"), "text.format")
    match (form or {"type": "text"}).get("type"):
        case "text":
            pass
        case "json_object":
            options["response_format"] = b'{"type":"json_object"}'
        case "json_schema":
            schema = _schema(form or {}, json_text.members(own["format"]))
            options["response_format"] = json_text.from_members({"type": b'"json_schema"', "json_schema": schema})
        case _:
            raise wrong("text.format.type", "must be text, json_object or json_schema")
    return options


def _schema(form: Mapping[str, object], raw: Mapping[str, bytes]) -> bytes:
    some_text(form.get("name"), "text.format.name")
    text(form.get("description"), "text.format.description")
    flag(form.get("strict"), "text.format.strict")
    if mapping(form.get("schema"), "text.format.schema") is None:
        raise wrong("text.format.schema", "must be an object")
    return _some(raw, _OF_SCHEMA)


def _tools(fields: Mapping[str, object], raw: Mapping[str, bytes]) -> dict[str, bytes]:
    tools = sequence(fields.get("tools"), "tools")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    chosen, required = _tool_choice(fields.get("tool_choice"))
    parallel = flag(fields.get("parallel_tool_calls"), "parallel_tool_calls")
    if not tools:  # a chat refuses these without tools; here they are always allowed, and mostly say nothing
        return {"tool_choice": chosen} if chosen and required else {}
    functions = [_some(json_text.members(tool), _OF_FUNCTION) for tool in json_text.items(raw["tools"])]
    options = {
        "tools": json_text.from_items(
            [json_text.from_members({"type": b'"function"', "function": function}) for function in functions]
        )
    }
    if chosen:
        options["tool_choice"] = chosen
    if parallel is not None:
        options["parallel_tool_calls"] = raw["parallel_tool_calls"]
    return options


def _check_tool(tool: object, where: str) -> None:
    if not isinstance(tool, dict):
        raise wrong(where, "must be an object")
    if tool.get("type") != "function":
        raise wrong(f"{where}.type", "must be function: a chat upstream runs no tools of its own")
    some_text(tool.get("name"), f"{where}.name")
    text(tool.get("description"), f"{where}.description")
    mapping(tool.get("parameters"), f"{where}.parameters")
    flag(tool.get("strict"), f"{where}.strict")


def _tool_choice(value: object) -> tuple[bytes | None, bool]:
    """The choice as a chat has it, and whether it asks for a call; None when there is none."""
    if isinstance(value, str | None):
        name = choice(value, "tool_choice", _CHOICES)
        return (json_text.dumps(name), name == "required") if name else (None, False)
    chosen = mapping(value, "tool_choice") or {}
    match chosen.get("type"):
        case "function":
            return json_text.dumps(_function(chosen, "tool_choice")), True
        case "allowed_tools":
            mode = choice(chosen.get("mode"), "tool_choice.mode", _CHOICES) or "auto"
            tools = [
                _function(tool, f"tool_choice.tools[{index}]")
                for index, tool in enumerate(sequence(chosen.get("tools"), "tool_choice.tools"))
            ]
            allowed = {"mode": mode, "tools": tools}
            return json_text.dumps({"type": "allowed_tools", "allowed_tools": allowed}), mode == "required"
    raise wrong("tool_choice", f"must be {', '.join(_CHOICES)}, a function or allowed_tools")


def _function(chosen: object, where: str) -> dict[str, object]:
    if not isinstance(chosen, dict) or chosen.get("type") != "function":
        raise wrong(f"{where}.type", "must be function")
    return {"type": "function", "function": {"name": some_text(chosen.get("name"), f"{where}.name")}}


def _some(members: Mapping[str, bytes], names: tuple[str, ...]) -> bytes:
    """The object of those members that are there and not null."""
    return json_text.from_members(
        {name: members[name] for name in names if members.get(name, b"null").strip() != b"null"}
    )
