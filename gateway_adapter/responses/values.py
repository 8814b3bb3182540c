"""Values of a body, each checked where it is read. What is wrong is InvalidRequest, named by its place in the body.

A place is written like `tools[0].name`, its code is `invalid_` and the first name in it. JSON null is the same as
missing.
"""

import re

from gateway_adapter.invalid import InvalidRequest

_FIRST_NAME = re.compile(r"\w+")
_METADATA_PAIRS = 16  # these three as OpenAI's clients know them
_METADATA_NAME = 64  # characters
_METADATA_VALUE = 512  # characters


def wrong(param: str, says: str) -> InvalidRequest:
    """The refusal of what stands at `param`; `says` follows its name: `must be a string`."""
    first = _FIRST_NAME.match(param)
    return InvalidRequest(f"{param} {says}.", param, f"invalid_{first.group() if first else param}")


def text(value: object, param: str) -> str | None:
    """A string, or None."""
    if not isinstance(value, str | None):
        raise wrong(param, "must be a string")
    return value


def some_text(value: object, param: str) -> str:
    """A string that is there and not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(param, "must be a string that is not empty")
    return value


def flag(value: object, param: str) -> bool | None:
    """True, false, or None."""
    if not isinstance(value, bool | None):
        raise wrong(param, "must be true or false")
    return value


def integer(value: object, param: str, least: int) -> int | None:
    """An integer of at least `least`, or None."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise wrong(param, f"must be an integer of at least {least}")
    return value


def number(value: object, param: str) -> float | None:
    """A number, or None."""
    if not isinstance(value, int | float | None) or isinstance(value, bool):
        raise wrong(param, "must be a number")
    return value


def choice(value: object, param: str, names: tuple[str, ...]) -> str | None:
    """One of these names, or None."""
    if value is None:
        return None
    if not isinstance(value, str) or value not in names:
        raise wrong(param, f"must be one of {', '.join(names)}")
    return value


def mapping(value: object, param: str) -> dict[str, object] | None:
    """An object, or None."""
    if not isinstance(value, dict | None):
        raise wrong(param, "must be an object")
    return value


def sequence(value: object, param: str) -> list[object]:
    """An array; empty when there is none."""
    if not isinstance(value, list | None):
        raise wrong(param, "must be an array")
    return value or []


def metadata(value: object) -> dict[str, str] | None:
    """The body's `metadata`: at most 16 strings under short names; None when there is none."""
    pairs = mapping(value, "metadata")
    if pairs is None:
        return None
    texts = {name: item for name, item in pairs.items() if isinstance(item, str) and len(item) <= _METADATA_VALUE}
    if len(texts) != len(pairs):
        raise wrong("metadata", f"must hold strings of at most {_METADATA_VALUE} characters")
    if len(texts) > _METADATA_PAIRS or any(len(name) > _METADATA_NAME for name in texts):
        raise wrong("metadata", f"must have at most {_METADATA_PAIRS} names of at most {_METADATA_NAME} characters")
    return texts
