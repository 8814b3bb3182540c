"""The two forms of a chat answer, JSON and event stream, and the way from each to the other."""

from collections.abc import Iterator

from gateway_adapter import json_text
from gateway_adapter.deltas import ChoiceDeltas
from gateway_adapter.sse import DONE, data_of, event

# What every chunk of a stream carries, in the order OpenAI writes it; none of it changes within an answer.
_OF_EVERY_CHUNK = ("id", "created", "model", "service_tier", "system_fingerprint")
# Of the answer's form rather than of its content; `obfuscation` is padding that hides the length of a chunk.
_FORM_ONLY = frozenset({"object", "choices", "usage", "obfuscation"})


class Aggregator:
    """Reads the event blocks of a chat stream and holds the JSON answer they amount to."""

    def __init__(self) -> None:
        self._fields: dict[str, object] = {}
        self._choices: dict[int, ChoiceDeltas] = {}
        self._usage: object = None
        self.seen_done = False
        self.failed = False  # an error event came, or something that is no chunk: the stream is no answer

    @property
    def complete(self) -> bool:
        """Whether the answer has ended: `[DONE]` came, or every choice told why it finished."""
        finished = bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())
        return not self.failed and (self.seen_done or finished)

    def add(self, block: bytes) -> None:
        """Take in one event block as it came."""
        data = (data_of(block) or b"").strip()
        if data == b"[DONE]":
            self.seen_done = True
        elif data:
            try:
                self._add_chunk(json_text.loads(data))
            except ValueError:
                self.failed = True

    def body(self) -> bytes:
        """The `chat.completion` equal to what was streamed."""
        answer = {"id": None, "object": "chat.completion", **self._fields}
        answer["choices"] = [self._choices[index].choice() for index in sorted(self._choices)]
        if self._usage is not None:
            answer["usage"] = self._usage
        return json_text.dumps(answer)

    def assistant_message(self) -> bytes | None:
        """The first choice's message as JSON; None when there is none."""
        first = self._choices.get(0)
        return None if first is None else json_text.dumps(first.message())

    def _add_chunk(self, chunk: object) -> None:
        if not isinstance(chunk, dict) or chunk.get("error"):
            raise ValueError("this is no chunk of an answer")
        choices = chunk.get("choices")
        if not isinstance(choices, list | None):
            raise ValueError("choices must be a list")
        for choice in choices or ():
            index = choice.get("index", 0) if isinstance(choice, dict) else None
            if not isinstance(index, int):
                raise ValueError("a choice must be an object with an index")
            self._choices.setdefault(index, ChoiceDeltas(index)).add(choice)
        self._usage = chunk.get("usage") or self._usage
        for name, value in chunk.items():
            if name in _OF_EVERY_CHUNK:  # a first chunk of another kind may leave them empty
                self._fields[name] = self._fields.get(name) or value
            elif name not in _FORM_ONLY:
                self._fields[name] = value


def assistant_message_of(body: bytes) -> bytes | None:
    """The message of a JSON answer's first choice, byte for byte; None when it holds none."""
    try:
        choices = json_text.items(json_text.members(body)["choices"])
        message = json_text.members(choices[0])["message"]
    except (KeyError, IndexError, ValueError):
        return None
    return message if message.startswith(b"{") else None


def as_events(body: bytes, include_usage: bool) -> list[bytes]:
    """The event blocks of a stream that says what this JSON answer says; ValueError when it is no chat answer.

    With `include_usage` a chunk without choices tells the usage before the end, if the answer has it.
    """
    answer = json_text.loads(body)
    if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
        raise ValueError("this is no chat answer")
    head = {"id": None, "object": "chat.completion.chunk"}
    head |= {name: answer[name] for name in _OF_EVERY_CHUNK if name in answer}
    once = {name: value for name, value in answer.items() if name not in head and name not in _FORM_ONLY}
    usage = answer.get("usage") if include_usage else None
    tail = {"usage": None} if usage is not None else {}
    blocks: list[bytes] = []
    for index, choice in enumerate(answer["choices"]):
        for piece in _choice_pieces(choice, index):
            blocks.append(event(json_text.dumps(head | once | {"choices": [piece]} | tail)))
            once = {}
    if usage is not None:
        blocks.append(event(json_text.dumps(head | {"choices": [], "usage": usage})))
    return [*blocks, DONE]


def _choice_pieces(choice: object, index: int) -> Iterator[dict[str, object]]:
    """A choice as the `choices` elements of a stream: the role first, a piece for each thing said, the end."""
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ValueError("a choice must be an object with a message")
    index = choice.get("index", index)
    calls = message.get("tool_calls") or []
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    opening = {name: value for name, value in said.items() if name == "role" or not value}
    deltas = [opening, *({name: value} for name, value in said.items() if name not in opening)]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("tool_calls must be a list of objects")
    deltas += [{"tool_calls": [{**call, "index": position}]} for position, call in enumerate(calls)]
    for delta in deltas:
        yield {"index": index, "delta": delta, "finish_reason": None}
    yield {"index": index, "delta": {}} | {name: value for name, value in choice.items() if name != "message"}
