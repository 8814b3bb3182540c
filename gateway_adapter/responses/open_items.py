"""Output items while they stream: each turns what is added to it into events, and knows what it is at the end.

An event here is its type and its fields; who sends it numbers it.
"""

from collections.abc import Collection, Iterator
from typing import Literal

from gateway_adapter.responses.outputs import (
    Fields,
    ItemStatus,
    call_id_of,
    call_item,
    item_id,
    message_item,
    refusal_part,
    text_part,
)  # fmt: skip

Event = tuple[str, Fields]
PartKind = Literal["output_text", "refusal"]


class _Part:
    """A part of the message: its text is joined once at the end, since adding to a long string copies it each time."""

    def __init__(self, kind: PartKind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.pieces: list[str] = []
        self.logprobs: list[Fields] = []

    @property
    def fields(self) -> Fields:
        text = "".join(self.pieces)
        return text_part(text, self.logprobs) if self.kind == "output_text" else refusal_part(text)


class OpenMessage:
    """The assistant's message."""

    def __init__(self, turn: str, index: int) -> None:
        self._id = item_id("msg", turn, index)
        self._index = index
        self._parts: dict[PartKind, _Part] = {}

    def opened(self) -> Iterator[Event]:
        """The event that it is there."""
        item = message_item(self._id, "in_progress", [])
        yield "response.output_item.added", {"output_index": self._index, "item": item}

    def add(self, kind: PartKind, delta: str, logprobs: list[Fields]) -> Iterator[Event]:
        """The events of a text that is added to the part of this kind."""
        part = self._parts.get(kind)
        if part is None:
            part = self._parts[kind] = _Part(kind, len(self._parts))
            yield "response.content_part.added", self._of(part) | {"part": part.fields}
        part.pieces.append(delta)
        part.logprobs += logprobs
        if delta and kind == "output_text":
            yield "response.output_text.delta", self._of(part) | {"delta": delta, "logprobs": logprobs}
        elif delta:
            yield "response.refusal.delta", self._of(part) | {"delta": delta}

    def add_logprobs(self, logprobs: list[Fields]) -> None:
        """Takes in log probabilities that came after their text."""
        if "output_text" in self._parts:
            self._parts["output_text"].logprobs += logprobs

    def closed(self, status: ItemStatus) -> Iterator[Event]:
        """The events that its parts and itself are done."""
        for part in self._parts.values():
            fields = part.fields
            if part.kind == "output_text":
                said = {"text": fields["text"], "logprobs": fields["logprobs"]}
                yield "response.output_text.done", self._of(part) | said
            else:
                yield "response.refusal.done", self._of(part) | {"refusal": fields["refusal"]}
            yield "response.content_part.done", self._of(part) | {"part": fields}
        yield "response.output_item.done", {"output_index": self._index, "item": self.item(status)}

    def item(self, status: ItemStatus) -> Fields:
        """The message with all that was added."""
        return message_item(self._id, status, [part.fields for part in self._parts.values()])

    def _of(self, part: _Part) -> Fields:
        return {"item_id": self._id, "output_index": self._index, "content_index": part.index}


class OpenCall:
    """A function call. It is opened once its name is known; what came before is told then."""

    def __init__(self) -> None:
        self.given_id: object = None
        """The id that the upstream gave it, if any."""
        self.call_id = ""
        self._id = ""
        self._index: int | None = None
        self._name: list[str] = []
        self._pieces: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether its events have begun."""
        return self._index is not None

    @property
    def name(self) -> str:
        """The function's name, as far as it is known."""
        return "".join(self._name)

    def open(self, turn: str, index: int, taken: Collection[str]) -> Iterator[Event]:
        """The events that it is there, and what was added to it before; `taken` are the call ids of others."""
        self._index = index
        self._id = item_id("fc", turn, index)
        self.call_id = call_id_of(self.given_id, taken, turn, index)
        item = call_item(self._id, "in_progress", self.call_id, self.name, "")
        yield "response.output_item.added", {"output_index": index, "item": item}
        yield from self._told("".join(self._pieces))

    def add(self, name: str, arguments: str) -> Iterator[Event]:
        """The events of a piece of its name, or the whole name again, and a piece of its arguments."""
        if name and name != self.name:
            self._name.append(name)
        self._pieces.append(arguments)
        if self.is_open:
            yield from self._told(arguments)

    def closed(self, status: ItemStatus) -> Iterator[Event]:
        """The events that its arguments and itself are done."""
        done = {"name": self.name, "arguments": "".join(self._pieces)}
        yield "response.function_call_arguments.done", self._of() | done
        yield "response.output_item.done", {"output_index": self._index, "item": self.item(status)}

    def item(self, status: ItemStatus) -> Fields:
        """The call with all that was added."""
        return call_item(self._id, status, self.call_id, self.name, "".join(self._pieces))

    def _told(self, arguments: str) -> Iterator[Event]:
        if arguments:
            yield "response.function_call_arguments.delta", self._of() | {"delta": arguments}

    def _of(self) -> Fields:
        return {"item_id": self._id, "output_index": self._index}
