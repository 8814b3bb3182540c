"""`POST /v1/chat/completions`: one request, top to bottom."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from aiohttp import web

from coordinator import (
    Address,
    Declared,
    Explicit,
    Implicit,
    Result,
    Settings,
    Turn,
    TurnRequest,
    fingerprint,
)
from gateway_adapter import context, replays
from gateway_adapter.completions import Aggregator, assistant_message_of
from gateway_adapter.errors import INTERNAL, ErrorAnswer, answer_of
from gateway_adapter.event_stream import ClientStream, error_event
from gateway_adapter.executors.base import JSON, Answer, UpstreamFailed
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.opening import opening_of
from gateway_adapter.requests import (
    ChatBody,
    TurnPolicy,
    idempotency_key,
    new_input,
    parse_chat,
    session_id,
    session_key,
    single_header,
    split_messages,
    turn_policy,
    with_members,
    with_messages,
)
from gateway_adapter.running import Ending, carried_along, run
from gateway_adapter.settings import GatewaySettings
from gateway_adapter.sse import DONE

_log = structlog.get_logger(__name__)

ROUTE = "chat.completions"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks for."""

    tenant: str
    body: ChatBody
    key: str | None
    named: str | None
    """The session id it names."""
    declared: str | None
    """The key of the conversation it names. A session id beside it goes first."""
    policy: TurnPolicy | None
    messages: list[bytes]
    """The body's messages, each as its own JSON bytes."""
    new_input: list[bytes]
    """Those behind the last assistant message: what a session whose history is in the store has not seen."""

    def turn_request(self, settings: Settings) -> TurnRequest:
        """The same as the coordinator is asked. Raises InvalidRequest for an opening that is none."""
        address: Address
        if self.named is not None:
            address = Explicit(self.named)
        elif self.declared is not None:
            address = Declared(settings.source, self.declared)
        else:
            address = Implicit(opening_of(self.body.fields))
        by_client = self.named is None and settings.transcripts == "managed"
        return TurnRequest(
            tenant=self.tenant,
            address=address,
            route=ROUTE,
            fingerprint=self._fingerprint(settings) if self.key is not None else "",
            idempotency_key=self.key,
            policy=self.policy,
            follow=self.body.stream,
            history="client" if by_client else "store",
        )

    def _fingerprint(self, settings: Settings) -> str:
        return fingerprint(ROUTE, _said("id", self.named), *self._declared(settings), self.body.canonical)

    def _declared(self, settings: Settings) -> tuple[str, ...]:
        return ("",) if self.declared is None else (f"key:{self.declared}", f"source:{settings.source}")


async def parse(request: web.Request) -> ChatRequest:
    """The only place that finds a request wrong in itself. Raises InvalidRequest."""
    key = idempotency_key(request.headers)
    named = single_header(request.headers, "X-Hermes-Session-Id", "invalid_session_id")
    declared = single_header(request.headers, "X-Hermes-Session-Key", "invalid_session_key")
    policy = single_header(request.headers, "X-Hermes-Turn-Policy", "invalid_turn_policy")
    body = parse_chat(await context.read_body(request))
    messages, roles = split_messages(body.raw)
    return ChatRequest(
        tenant=request[context.TENANT],
        body=body,
        key=key,
        named=session_id(named) if named is not None else None,
        declared=session_key(declared) if declared is not None else None,
        policy=turn_policy(policy) if policy else None,
        messages=messages,
        new_input=new_input(messages, roles),
    )


async def post(request: web.Request) -> web.StreamResponse:
    """Answers with what the turn said, or what an earlier one with the same key said."""
    asked = await parse(request)
    wanted = asked.turn_request(request.app[context.SETTINGS].coordinator)
    client = ClientStream(request, numbered=asked.key is not None)
    try:
        with context.ended_by_disconnect(request):
            async with request.app[context.COORDINATOR].turn(wanted) as turn:
                # A waiter leaves with its client, a running turn only when no retry can fetch its answer.
                context.outlives_its_client(request, resumable=asked.key is not None)
                request[context.SESSION] = turn.session_id
                if turn.replay:
                    request[context.ABOUT] = _about(asked, await replays.scope_of(request, turn.replay))
                    return await replays.send(request, client, turn.replay, asked.body)
                if asked.body.stream:
                    await replays.refuse_going_on(request, turn)
                request[context.ABOUT] = _about(asked, turn.scope)
                dialect = ChatDialect(asked, request.app[context.SETTINGS], request.headers)
                result = await run(request.app, turn, dialect, client, request[context.ABOUT])
                return replays.json_response(request, result) if result else client.response
    except Exception as error:
        if not client.is_open:
            raise
        # What was sent cannot be taken back: whatever went wrong is the stream's last event.
        answer = answer_of(error, keyed=asked.key is not None)
        if answer is None:
            _log.exception("a stream failed")
        await client.fail(error_event(answer or INTERNAL))
        return await client.close()


class ChatDialect:
    """Chat completions: the upstream's own bytes in both directions."""

    def __init__(self, asked: ChatRequest, settings: GatewaySettings, sent: Mapping[str, str]) -> None:
        self._asked = asked
        self._settings = settings
        self._sent = sent
        self._aggregator = Aggregator()
        self.stream = asked.body.stream
        self.resumable = asked.key is not None
        self.ended = False

    def upstream_request(self, turn: Turn) -> tuple[bytes, Mapping[str, str]]:
        """The client's own bytes, with the stored transcript in front of what is new where the gateway keeps it, and
        the scope and the fence under the names that the settings give them. InvalidRequest: there is nothing new."""
        asked, settings = self._asked, self._settings
        carried = asked.named is not None or asked.declared is not None or settings.scope_implicit
        extra, headers = carried_along(settings, turn, self._sent, scope=carried)
        if not turn.grant.history_kept:
            return with_members(asked.body.raw, extra), headers
        if not asked.new_input:
            raise InvalidRequest(
                "messages must end with something new: this session's history is kept by the gateway.",
                "messages",
                "invalid_messages",
            )
        return with_messages(asked.body.raw, [*turn.history, *asked.new_input], extra), headers

    def whole(self, answer: Answer) -> Ending:
        """The answer as it is."""
        body = answer.body or b""
        result = Result(status=answer.status, body=body, content_type=answer.content_type)
        return Ending(result, self._transcript(assistant_message_of(body)))

    def start(self) -> list[bytes]:
        """A chat stream begins with the upstream's first chunk."""
        return []

    def add(self, block: bytes) -> list[bytes]:
        """The block as it is."""
        self._aggregator.add(block)
        if self._aggregator.failed:
            raise UpstreamFailed("the upstream's stream is no answer")
        self.ended = self._aggregator.seen_done
        return [block]

    def finish(self) -> Ending:
        """The JSON form of what was streamed."""
        if not self._aggregator.complete:
            raise UpstreamFailed("the upstream's stream ended before its answer")
        result = Result(status=200, body=self._aggregator.body(), content_type=JSON)
        last = [] if self.ended else [DONE]
        return Ending(result, self._transcript(self._aggregator.assistant_message()), last)

    def fail(self, error: ErrorAnswer) -> Ending:
        """The error, as JSON and as the stream's last event."""
        return Ending(Result(status=error.status, body=error.body), events=[error_event(error)])

    def _transcript(self, message: bytes | None) -> list[bytes]:
        return [*self._asked.new_input, message] if message is not None else []


def _about(asked: ChatRequest, scope: str | None) -> dict[str, str]:
    """The scope, and the declared key when it was what led to the session."""
    key = asked.declared if asked.named is None else None
    told = {"X-Hermes-Scope": scope, "X-Hermes-Session-Key": key}
    return {name: value for name, value in told.items() if value is not None}


def _said(what: str, value: str | None) -> str:
    return "" if value is None else f"{what}:{value}"
