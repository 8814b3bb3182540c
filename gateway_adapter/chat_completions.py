"""`POST /v1/chat/completions`: one request, top to bottom."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from coordinator import (
    Address,
    CoordinatorError,
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
from gateway_adapter.disconnects import is_gone
from gateway_adapter.errors import answer_of
from gateway_adapter.event_stream import ClientStream, arriving, error_event
from gateway_adapter.executors.base import (
    JSON,
    Answer,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnavailable,
)  # fmt: skip
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
)  # fmt: skip
from gateway_adapter.sse import DONE, is_done

ROUTE = "chat.completions"

_BATCH_S = 0.02  # a resumable stream goes to the store at most 50 times a second, whatever the model's speed


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
            fingerprint=fingerprint(ROUTE, _said("id", self.named), *self._declared(settings), self.body.canonical),
            idempotency_key=self.key,
            policy=self.policy,
            follow=self.body.stream,
            history="client" if by_client else "store",
        )

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
    client = ClientStream(request)
    try:
        with context.ended_by_disconnect(request):
            async with request.app[context.COORDINATOR].turn(wanted) as turn:
                # A waiter leaves with its client, a running turn only when no retry can fetch its answer.
                context.outlives_its_client(request, resumable=asked.key is not None)
                request[context.SESSION] = turn.session_id
                if turn.replay:
                    return await replays.send(request, client, turn.replay, asked.body)
                if is_gone(request):  # it left while it waited, and nobody had looked yet
                    await turn.refuse()
                    return client.response
                request[context.ABOUT] = _about(asked, turn)
                return await _run(request, asked, turn, client)
    except CoordinatorError as error:
        answer = answer_of(error, keyed=asked.key is not None)
        if not client.is_open or answer is None:
            raise
        await client.send([error_event(answer)])
        return await client.close()


async def _run(request: web.Request, asked: ChatRequest, turn: Turn, client: ClientStream) -> web.StreamResponse:
    """Runs the granted turn. Whatever comes of it is committed, or taken back, before the client has it all."""
    settings = request.app[context.SETTINGS]
    body, headers = await _upstream_request(request, asked, turn)
    executor = request.app[context.EXECUTOR]
    try:
        async with (
            asyncio.timeout(settings.coordinator.turn_limit_ms / 1000),
            executor.chat(body, stream=asked.body.stream, headers=headers) as answer,
        ):
            if answer.events is not None:
                return await _stream(request, asked, turn, answer, answer.events, client)
            return await _json(request, asked, turn, answer)
    except (UpstreamRefused, UpstreamAuthFailed, UpstreamUnavailable) as refusal:
        # Nothing ran: the key is free again, and those who joined are told the same.
        result = replays.refusal_of(refusal)
        await turn.refuse(result)
        return replays.json_response(request, result, {})
    except (UpstreamError, TimeoutError) as failure:
        return await _fail(request, turn, client, failure)


async def _upstream_request(request: web.Request, asked: ChatRequest, turn: Turn) -> tuple[bytes, dict[str, str]]:
    """What the upstream is sent: the client's own bytes, with the stored transcript in front of what is new where the
    gateway keeps it, and the scope and the fence under the names that the settings give them."""
    settings = request.app[context.SETTINGS]
    kept = turn.grant.history_kept
    if kept and not asked.new_input:
        await turn.refuse()
        raise InvalidRequest(
            "messages must end with something new: this session's history is kept by the gateway.",
            "messages",
            "invalid_messages",
        )
    carried = asked.named is not None or asked.declared is not None or settings.scope_implicit
    extra = settings.scope_as.in_body(turn.scope) if carried else {}
    headers = settings.scope_as.in_headers(turn.scope if carried else None, request.headers)
    if settings.fence_header:
        headers[settings.fence_header] = str(turn.fence)
    if kept:
        return with_messages(asked.body.raw, [*turn.history, *asked.new_input], extra), headers
    return with_members(asked.body.raw, extra), headers


def _about(asked: ChatRequest, turn: Turn) -> dict[str, str]:
    """The scope, and the declared key when it was what led to the session."""
    effective = asked.declared is not None and asked.named is None
    return {"X-Hermes-Scope": turn.scope} | ({"X-Hermes-Session-Key": asked.declared or ""} if effective else {})


def _said(what: str, value: str | None) -> str:
    return "" if value is None else f"{what}:{value}"


async def _json(request: web.Request, asked: ChatRequest, turn: Turn, answer: Answer) -> web.StreamResponse:
    result = Result(
        status=answer.status,
        body=answer.body or b"",
        content_type=answer.content_type,
        headers=_recorded(request, answer),
    )
    await turn.finish(result, messages=_transcript(asked, assistant_message_of(result.body)))
    return replays.json_response(request, result, context.answer_headers(request))


async def _stream(
    request: web.Request,
    asked: ChatRequest,
    turn: Turn,
    answer: Answer,
    events: AsyncIterator[bytes],
    client: ClientStream,
) -> web.StreamResponse:
    aggregator = Aggregator()
    last: list[bytes] = []
    await client.open({**answer.headers, **context.answer_headers(request)})
    async with arriving(events, _BATCH_S if asked.key else 0) as batches:
        async for batch in batches:
            for position, block in enumerate(batch, 1):
                aggregator.add(block)
                if is_done(block):
                    last = batch[:position]
                    break
            if aggregator.failed:
                raise UpstreamFailed("the upstream's stream is no answer")
            if last:
                break
            if batch and asked.key:
                await turn.append(batch)
            await client.send(batch or [client.KEEP_ALIVE])
    if not aggregator.complete:
        raise UpstreamFailed("the upstream's stream ended before its answer")
    # The last event is held back until the turn is committed: who has read it all can rely on it.
    last = last or [DONE]
    result = Result(status=200, body=aggregator.body(), content_type=JSON, headers=_recorded(request, answer))
    await turn.finish(result, messages=_transcript(asked, aggregator.assistant_message()), events=last)
    await client.send(last)
    return await client.close()


async def _fail(request: web.Request, turn: Turn, client: ClientStream, failure: Exception) -> web.StreamResponse:
    """Records a failure after the dispatch, so that a retry is told the same and nothing runs twice."""
    error = replays.failure_of(failure)
    last = [error_event(error)] if client.is_open else []
    result = Result(status=error.status, body=error.body, headers=json.dumps(error.headers).encode())
    await turn.finish(result, events=last, state="failed")
    if client.is_open:
        await client.send(last)
        return await client.close()
    return replays.json_response(request, result, context.answer_headers(request))


def _recorded(request: web.Request, answer: Answer) -> bytes:
    """The headers that a replay repeats."""
    return json.dumps({**answer.headers, **request.get(context.ABOUT, {})}).encode()


def _transcript(asked: ChatRequest, message: bytes | None) -> list[bytes]:
    return [*asked.new_input, message] if message is not None else []
