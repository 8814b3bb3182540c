"""What a request says: the chat body, its messages as raw JSON, and the headers that address and protect a turn."""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from multidict import CIMultiDictProxy

from gateway_adapter import json_text
from gateway_adapter.invalid import InvalidRequest

TurnPolicy = Literal["wait", "reject", "interrupt"]

DEPTH_LIMIT = 200  # levels of nesting; tool schemas stay below 20, and far more would reach the interpreter's own limit
_ID_LIMIT = 256  # characters of a session id or session key
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_FORM_ONLY = frozenset({"stream", "stream_options"})  # how the answer is sent, not what is asked


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A chat completion request."""

    raw: bytes
    fields: dict[str, object]
    model: str
    stream: bool
    include_usage: bool

    @property
    def canonical(self) -> bytes:
        """The same for bodies that ask the same, in whatever form; made when asked for, since only keys need it."""
        asked = {name: value for name, value in self.fields.items() if name not in _FORM_ONLY}
        return json.dumps(asked, sort_keys=True, separators=(",", ":")).encode("ascii")


def parse_chat(raw: bytes) -> ChatBody:
    """Read a chat completion request; InvalidRequest names what is wrong with it."""
    fields = parse_object(raw)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model must be a string that is not empty.", "model", "invalid_model")
    stream = _flag(fields, "stream", "stream", "invalid_stream")
    options = fields.get("stream_options")
    if not isinstance(options, dict | None):
        raise InvalidRequest("stream_options must be an object.", "stream_options", "invalid_stream_options")
    usage = _flag(options or {}, "include_usage", "stream_options.include_usage", "invalid_stream_options")
    return ChatBody(raw, fields, model, stream, usage)


def parse_object(raw: bytes) -> dict[str, object]:
    """The members of a body that is a JSON object; InvalidRequest for any other."""
    try:
        fields = json.loads(raw.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # includes integers too long for the interpreter to read in bounded time
        raise InvalidRequest(f"The body is not valid JSON: {_reason(error)}.", None, "invalid_json") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.", None, "invalid_json")
    level: list[object] = [fields]
    for _ in range(DEPTH_LIMIT):
        below = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [child for children in below for child in children if isinstance(child, dict | list)]
        if not level:
            return fields
    raise _too_deep()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} column {error.colno}"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "it holds a number that cannot be read"


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"The body is nested more than {DEPTH_LIMIT} levels deep.", None, "invalid_json")


def _flag(fields: Mapping[str, object], name: str, param: str, code: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise InvalidRequest(f"{param} must be true or false.", param, code)
    return bool(value)


def split_messages(raw: bytes) -> tuple[list[bytes], list[str]]:
    """The messages of a chat body, each as its own JSON bytes, and their roles."""
    try:
        messages = json_text.items(json_text.members(raw)["messages"])
        roles = [json_text.loads(json_text.members(message)["role"]) for message in messages]
    except (KeyError, ValueError):
        messages, roles = [], []
    names = [role for role in roles if isinstance(role, str)]
    if not messages or len(names) != len(messages):
        raise InvalidRequest("messages must be a list of objects with a role.", "messages", "invalid_messages")
    return messages, names


def new_input(raw_messages: list[bytes], roles: list[str]) -> list[bytes]:
    """What the client adds to a history it has seen: everything after the last assistant message."""
    seen = max((index for index, role in enumerate(roles, 1) if role == "assistant"), default=0)
    return raw_messages[seen:]


def with_messages(raw: bytes, messages: list[bytes], extra: Mapping[str, bytes] | None = None) -> bytes:
    """The body with these raw JSON messages for its own, and extra raw members where it has none of that name."""
    members = json_text.members(raw)
    members["messages"] = json_text.from_items(messages)
    for name, value in (extra or {}).items():
        members.setdefault(name, value)
    return json_text.from_members(members)


def with_members(raw: bytes, extra: Mapping[str, bytes]) -> bytes:
    """The body with extra raw members where it has none of that name; without any, the very bytes."""
    if not extra:
        return raw
    members = json_text.members(raw)
    return raw if extra.keys() <= members.keys() else json_text.from_members({**extra, **members})


def single_header(headers: CIMultiDictProxy[str], name: str, code: str = "invalid_header") -> str | None:
    """The value of a header that may be sent once; None when it is missing or blank."""
    values = headers.getall(name, [])
    if len(values) > 1:
        raise InvalidRequest(f"{name} may be sent only once.", name, code)
    return values[0].strip(" \t") or None if values else None  # other white space may be part of an id


def idempotency_key(headers: CIMultiDictProxy[str]) -> str | None:
    """The request's Idempotency-Key: 1 to 255 visible ASCII characters; None when it is missing or blank."""
    key = single_header(headers, "Idempotency-Key", "invalid_idempotency_key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest(
            "Idempotency-Key must be 1 to 255 visible ASCII characters.", "Idempotency-Key", "invalid_idempotency_key"
        )
    return key


def session_id(value: str) -> str:
    """The session id, when it may be one; see `_identifier`."""
    return _identifier(value, "session id", "invalid_session_id")


def session_key(value: str) -> str:
    """The session key, when it may be one; see `_identifier`."""
    return _identifier(value, "session key", "invalid_session_key")


def _identifier(value: str, what: str, code: str) -> str:
    """1 to 256 characters of valid UTF-8 without control characters, and not a path segment that clients resolve away.

    A header byte that is not UTF-8 arrives as a lone surrogate.
    """
    if not 1 <= len(value) <= _ID_LIMIT:
        raise InvalidRequest(f"A {what} must have 1 to {_ID_LIMIT} characters.", None, code)
    if value in {".", ".."}:
        raise InvalidRequest(f"A {what} must not be . or .. alone.", None, code)
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in value):
        raise InvalidRequest(f"A {what} must be valid UTF-8 without control characters.", None, code)
    return value


def turn_policy(value: str) -> TurnPolicy:
    """What to do when the conversation is busy."""
    match value:
        case "wait" | "reject" | "interrupt":
            return value
    raise InvalidRequest("The turn policy must be wait, reject or interrupt.", None, "invalid_turn_policy")
