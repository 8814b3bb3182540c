"""JSON taken apart without changing it: integers of any size, every string and, where possible, every byte."""

import json

import msgspec


def loads(raw: bytes) -> object:
    """Decode UTF-8 JSON; ValueError for anything else, including nesting deeper than the interpreter's stack."""
    try:
        return json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def dumps(value: object) -> bytes:
    """Encode compact JSON in plain ASCII, so that a lone surrogate survives as the escape it came as."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def members(raw: bytes) -> dict[str, bytes]:
    """The members of a JSON object, each value in its own bytes; ValueError when it is no object."""
    try:
        return {name: bytes(value) for name, value in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items()}
    except (msgspec.DecodeError, RecursionError):
        # msgspec refuses lone surrogates, which clients that cut an emoji in two do send: those are encoded again.
        value = loads(raw)
        if not isinstance(value, dict):
            raise ValueError("the JSON is not an object") from None
        return {name: dumps(member) for name, member in value.items()}


def items(raw: bytes) -> list[bytes]:
    """The items of a JSON array, each in its own bytes; ValueError when it is no array."""
    try:
        return [bytes(item) for item in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, RecursionError):
        value = loads(raw)  # as in members()
        if not isinstance(value, list):
            raise ValueError("the JSON is not an array") from None
        return [dumps(item) for item in value]


def from_members(values: dict[str, bytes]) -> bytes:
    """The JSON object with these members, their bytes untouched."""
    return b"{" + b",".join(dumps(name) + b":" + value for name, value in values.items()) + b"}"


def from_items(values: list[bytes]) -> bytes:
    """The JSON array of these items, their bytes untouched."""
    return b"[" + b",".join(values) + b"]"
