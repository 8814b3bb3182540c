"""One choice of a chat answer, put together from the deltas of its stream."""

from collections.abc import Iterable, Mapping

# Told once; a stream that repeats them with every piece still means one.
_TOLD_ONCE = frozenset({"role", "id", "type"})
# Objects that come in pieces themselves.
_IN_PIECES = frozenset({"function_call", "function", "custom", "audio"})


class ChoiceDeltas:
    """Collects the stream chunks of one choice: `message()` and `choice()` are what the JSON answer would hold.

    Strings are put together, and so are lists; of anything else unknown the last value counts. `add` raises ValueError
    for what is no part of a choice.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._fields: dict[str, object] = {}
        self._message: dict[str, object] = {}
        self._logprobs: dict[str, object] | None = None
        self._calls: dict[int, dict[str, object]] = {}
        self.finish_reason: object = None

    def add(self, chunk: Mapping[str, object]) -> None:
        """Take in one element of a chunk's `choices`."""
        for name, value in chunk.items():
            if name == "delta":
                delta = dict(_mapping(value))
                for call in _sequence(delta.pop("tool_calls", None)):
                    self._add_call(_mapping(call))
                _merge(self._message, delta)
            elif name == "logprobs":
                self._fields.setdefault(name, None)
                if value is not None:
                    self._logprobs = self._logprobs or {}
                    _merge(self._logprobs, _mapping(value))
            elif name == "finish_reason":
                self.finish_reason = value if value is not None else self.finish_reason
            elif name != "index" and (value is not None or name not in self._fields):
                self._fields[name] = value

    def message(self) -> dict[str, object]:
        """The message so far."""
        message = {"role": "assistant", "content": None, **_plain(self._message)}
        if self._calls:
            message["tool_calls"] = [_plain(self._calls[index]) for index in sorted(self._calls)]
        return message

    def choice(self) -> dict[str, object]:
        """The choice so far, as the JSON answer holds it."""
        fields = dict(self._fields)
        if self._logprobs is not None:
            fields["logprobs"] = _plain(self._logprobs)
        return {"index": self._index, "message": self.message(), **fields, "finish_reason": self.finish_reason}

    def _add_call(self, delta: Mapping[str, object]) -> None:
        index = call_index(delta, {number: call.get("id") for number, call in self._calls.items()})
        call = self._calls.setdefault(index, {})
        _merge(call, {name: value for name, value in delta.items() if name != "index"})


def call_index(delta: Mapping[str, object], known: Mapping[int, object]) -> int:
    """The number of the tool call that a delta is of; `known` are the calls so far, each by its number with its id."""
    index = delta.get("index")
    if isinstance(index, int):
        return index
    # Some servers number no calls: each then comes whole, or is told by its id.
    same = (number for number, call_id in known.items() if delta.get("id") in (call_id, None))
    return max(same, default=max(known, default=-1) + 1)


class _Pieces(list[str]):
    """A text still coming in: joined once at the end, since adding to a long string copies it each time."""


def _merge(into: dict[str, object], delta: Mapping[str, object]) -> None:
    for name, value in delta.items():
        if value is None:
            into.setdefault(name, None)
        else:
            into[name] = _merged(name, into.get(name), value)


def _merged(name: str, seen: object, value: object) -> object:
    """What a member is after one more delta of it."""
    if name in _TOLD_ONCE:
        return seen or value
    if isinstance(value, str):
        if name == "name":  # comes whole, repeated, or in pieces
            return value if seen in (None, value) else f"{seen}{value}"
        pieces = seen if isinstance(seen, _Pieces) else _Pieces()
        pieces.append(value)
        return pieces
    if isinstance(value, dict) and name in _IN_PIECES:
        nested = seen if isinstance(seen, dict) else {}
        _merge(nested, value)
        return nested
    if isinstance(value, list) and isinstance(seen, list) and not isinstance(seen, _Pieces):
        seen.extend(value)
        return seen
    return value


def _plain(merged: Mapping[str, object]) -> dict[str, object]:
    """The same with every text in one piece."""
    plain: dict[str, object] = {}
    for name, value in merged.items():
        if isinstance(value, _Pieces):
            plain[name] = "".join(value)
        else:
            plain[name] = _plain(value) if isinstance(value, dict) and name in _IN_PIECES else value
    return plain


def _mapping(value: object) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("an object was expected")
    return value


def _sequence(value: object) -> Iterable[object]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError("a list was expected")
    return value
