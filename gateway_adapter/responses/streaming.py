"""From the stream of a chat completion to the events of a response."""

from collections.abc import Iterable, Iterator, Mapping

from gateway_adapter import json_text
from gateway_adapter.completions import Aggregator, as_events, assistant_message_of
from gateway_adapter.deltas import call_index
from gateway_adapter.responses.objects import ResponseStatus, response_object, turn_of
from gateway_adapter.responses.open_items import Event, OpenCall, OpenMessage, PartKind
from gateway_adapter.responses.outputs import (
    Fields,
    Output,
    function_of,
    incomplete_of,
    logprobs_of,
    statuses_of,
    text_of,
    usage_of,
    with_call_ids,
)  # fmt: skip
from gateway_adapter.responses.request import ResponsesRequest
from gateway_adapter.sse import data_of

CANCELLED: Mapping[str, object] = {"code": "turn_cancelled", "message": "The response was cancelled."}

_SAID_NOTHING = b'{"role":"assistant","content":""}'


class ResponseEvents:
    """Reads the event blocks of a chat stream and gives back those of the response, numbered without gaps.

    The order of calls is `start()`, then `add()` for each block or `whole()` for a JSON answer, then one of `finish()`,
    `fail()` and `cancelled()`. Items are told in the order in which they begin, and are done at the end, since pieces
    of a chat's message and of its calls may come mixed. Times are seconds since the epoch. Whoever goes on where
    another stopped says with `first_number` how many events there are.
    """

    def __init__(
        self,
        request: ResponsesRequest,
        response_id: str,
        created_at: int,
        conversation_id: str | None = None,
        first_number: int = 0,
    ) -> None:
        self._request = request
        self._response_id = response_id
        self._created_at = created_at
        self._conversation_id = conversation_id
        self._turn = turn_of(response_id)
        self._aggregator = Aggregator()
        self._unreadable = False
        self._number = first_number
        self._items: list[OpenMessage | OpenCall] = []  # those that are open, by output index
        self._message: OpenMessage | None = None
        self._calls: dict[int, OpenCall] = {}  # by the upstream's number, also those that are not open yet
        self._usage: object = None
        self._finish_reason: object = None

    @property
    def complete(self) -> bool:
        """Whether the answer has ended, so that `finish` may be called."""
        return self._aggregator.complete and not self.failed

    @property
    def failed(self) -> bool:
        """Whether an error came, or something that is no part of an answer: there is nothing to finish."""
        return self._unreadable or self._aggregator.failed

    def start(self) -> list[bytes]:
        """The first events, before the upstream has said anything."""
        begun: Fields = {"response": self._response("in_progress")}
        return self._blocks([("response.created", begun), ("response.in_progress", begun)])

    def add(self, block: bytes) -> list[bytes]:
        """The events that one event block of the chat stream amounts to; none for one that fails."""
        self._aggregator.add(block)
        data = (data_of(block) or b"").strip()
        if self.failed or not data or data == b"[DONE]":
            return []
        return self._blocks(self._events(json_text.loads(data)))

    def whole(self, chat_answer: bytes) -> list[bytes]:
        """The events that a JSON answer amounts to, as if it had been streamed."""
        try:
            blocks = as_events(chat_answer, include_usage=True)
        except ValueError:
            blocks = []
        if assistant_message_of(chat_answer) is None:
            blocks = []
        self._unreadable = not blocks
        return [event for block in blocks for event in self.add(block)]

    def finish(self, completed_at: int | None = None) -> tuple[list[bytes], Output, Fields]:
        """The last events, the output, and the response as it is from now on."""
        incomplete = incomplete_of(self._finish_reason)
        blocks = self._blocks(self._remaining())
        statuses = statuses_of(len(self._items), incomplete)
        output = Output(
            items=[item.item(status) for item, status in zip(self._items, statuses, strict=True)],
            usage=usage_of(self._usage),
            incomplete=incomplete,
            message=with_call_ids(
                self._aggregator.assistant_message() or _SAID_NOTHING,
                [self._calls[number].call_id for number in sorted(self._calls)],
            ),
        )
        done = (event for item, status in zip(self._items, statuses, strict=True) for event in item.closed(status))
        response = self._response(output.status, output=output, completed_at=completed_at)
        last: Event = (f"response.{output.status}", {"response": response})
        return blocks + self._blocks([*done, last]), output, response

    def fail(self, code: str, message: str) -> list[bytes]:
        """The last event of a response that failed."""
        response = self._response("failed", error={"code": code, "message": message})
        return self._blocks([("response.failed", {"response": response})])

    def cancelled(self) -> list[bytes]:
        """The last event of a response that was cancelled: clients know no event for it, its status tells."""
        return self._blocks([("response.failed", {"response": self._response("cancelled", error=CANCELLED)})])

    def _response(
        self,
        status: ResponseStatus,
        output: Output | None = None,
        error: Mapping[str, object] | None = None,
        completed_at: int | None = None,
    ) -> Fields:
        return response_object(
            self._request,
            response_id=self._response_id,
            created_at=self._created_at,
            status=status,
            output=output,
            error=error,
            conversation_id=self._conversation_id,
            completed_at=completed_at,
        )

    def _events(self, chunk: object) -> Iterator[Event]:
        """The events of a chunk that the aggregator has accepted."""
        if not isinstance(chunk, dict):
            return
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta") or {}
            logprobs = logprobs_of(choice.get("logprobs"))
            if said := text_of(delta.get("content")):
                yield from self._said("output_text", said, logprobs)
            elif logprobs and self._message is not None:
                self._message.add_logprobs(logprobs)
            if refusal := text_of(delta.get("refusal")):
                yield from self._said("refusal", refusal, [])
            for call in delta.get("tool_calls") or ():
                yield from self._called(call or {})

    def _said(self, kind: PartKind, text: str, logprobs: list[Fields]) -> Iterator[Event]:
        if self._message is None:
            self._message = OpenMessage(self._turn, len(self._items))
            self._items.append(self._message)
            yield from self._message.opened()
        yield from self._message.add(kind, text, logprobs)

    def _called(self, delta: Mapping[str, object]) -> Iterator[Event]:
        number = call_index(delta, {number: call.given_id for number, call in self._calls.items()})
        call = self._calls.setdefault(number, OpenCall())
        call.given_id = call.given_id or delta.get("id")
        yield from call.add(*function_of(delta))
        if call.name and not call.is_open:
            yield from self._opened(call)

    def _opened(self, call: OpenCall) -> Iterator[Event]:
        index = len(self._items)
        self._items.append(call)
        yield from call.open(self._turn, index, [other.call_id for other in self._calls.values()])

    def _remaining(self) -> Iterator[Event]:
        """Calls that never had a name are told all the same; an answer that says nothing is an empty message."""
        for number in sorted(self._calls):
            if not self._calls[number].is_open:
                yield from self._opened(self._calls[number])
        if not self._items:
            yield from self._said("output_text", "", [])

    def _blocks(self, events: Iterable[Event]) -> list[bytes]:
        blocks: list[bytes] = []
        for kind, fields in events:
            blocks.append(event_block(kind, self._number, fields))
            self._number += 1
        return blocks


def event_block(kind: str, number: int, fields: Mapping[str, object]) -> bytes:
    """One event of a response; `number` is its place in the stream, from 0."""
    data = json_text.dumps({"type": kind, "sequence_number": number, **fields})
    return b"event: " + kind.encode("ascii") + b"\ndata: " + data + b"\n\n"
