"""How `/v1/responses` and `/v1/runs` speak, over an upstream that speaks chat completions."""

from collections.abc import Mapping

from coordinator import Result, Turn, TurnView
from gateway_adapter import json_text
from gateway_adapter.errors import ErrorAnswer
from gateway_adapter.executors.base import Answer, UpstreamFailed
from gateway_adapter.requests import with_members
from gateway_adapter.responses.asked import Asked
from gateway_adapter.responses.lookup import response_id
from gateway_adapter.responses.messages import chat_messages
from gateway_adapter.responses.objects import response_object
from gateway_adapter.responses.outputs import Output, output_of
from gateway_adapter.responses.request import chat_body
from gateway_adapter.responses.streaming import ResponseEvents
from gateway_adapter.running import Ending, carried_along
from gateway_adapter.settings import GatewaySettings
from gateway_adapter.sse import is_done


class ResponsesDialect:
    """One response, made by one turn."""

    def __init__(
        self,
        asked: Asked,
        turn: Turn,
        settings: GatewaySettings,
        sent: Mapping[str, str],
        *,
        stream: bool,
        accepted: TurnView | None = None,
    ) -> None:
        self._asked = asked
        self._turn = turn
        self._settings = settings
        self._sent = sent
        self._new = chat_messages(asked.body.input_items)
        self.turn_id = turn.id
        self.response_id = response_id(accepted.home if accepted else turn.cid, turn.id)
        self._created_at = (accepted.started_ms if accepted else turn.grant.granted_ms) // 1000
        self._events = ResponseEvents(asked.body, self.response_id, self._created_at, turn.session_id)
        self.stream = stream
        self.resumable = asked.resumable
        self.ended = False

    def upstream_request(self, turn: Turn) -> tuple[bytes, Mapping[str, str]]:
        """The transcript and what is new as a chat completion request, with the scope and the fence."""
        members, headers = carried_along(self._settings, turn, self._sent, scope=True)
        body = chat_body(self._asked.body, [*turn.history, *self._new], stream=self.stream)
        return with_members(body, members), headers

    def whole(self, answer: Answer) -> Ending:
        """The response for a chat completion."""
        try:
            output = output_of(answer.body or b"", self._turn.id)
        except ValueError:
            raise UpstreamFailed("the upstream's answer is no chat completion") from None
        final = response_object(
            self._asked.body,
            response_id=self.response_id,
            created_at=self._created_at,
            status="incomplete" if output.incomplete else "completed",
            output=output,
            conversation_id=self._turn.session_id,
        )
        return self._ending(final, output, [])

    def start(self) -> list[bytes]:
        """The events that say that the response is being made."""
        return self._events.start()

    def add(self, block: bytes) -> list[bytes]:
        """The events for a chunk of the upstream's."""
        events = self._events.add(block)
        if self._events.failed:
            raise UpstreamFailed("the upstream's stream is no answer")
        self.ended = is_done(block)
        return events

    def finish(self) -> Ending:
        """The response that was streamed."""
        if not self._events.complete:
            raise UpstreamFailed("the upstream's stream ended before its answer")
        events, output, final = self._events.finish()
        return self._ending(final, output, events)

    def fail(self, error: ErrorAnswer) -> Ending:
        """The error as JSON, and as the stream's last event."""
        return Ending(Result(status=error.status, body=error.body), events=self.error_events(error))

    def error_events(self, error: ErrorAnswer) -> list[bytes]:
        """The last event of a stream that fails."""
        return (
            self._events.cancelled() if error.code == "turn_cancelled" else self._events.fail(error.code, error.message)
        )

    def _ending(self, final: dict[str, object], output: Output, events: list[bytes]) -> Ending:
        return Ending(Result(status=200, body=json_text.dumps(final)), [*self._new, output.message], events)
