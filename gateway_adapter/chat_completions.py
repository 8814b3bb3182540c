"""`POST /v1/chat/completions`: one request, top to bottom."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from coordinator import CoordinatorError, Explicit, Implicit, Result, Turn, TurnRequest, fingerprint
from gateway_adapter import context, replays
from gateway_adapter.completions import Aggregator, assistant_message_of
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
    single_header,
    split_messages,
    turn_policy,
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
    """The session id it names, None for the conversation of its opening."""
    policy: TurnPolicy | None
    messages: list[bytes]
    """The body's messages, each as its own JSON bytes."""
    new_input: list[bytes]
    """Those behind the last assistant message: what a session whose history is in the store has not seen."""

    def turn_request(self) -> TurnRequest:
        """The same as the coordinator is asked. Raises InvalidRequest for an opening that is none."""
        return TurnRequest(
            tenant=self.tenant,
            address=Explicit(self.named) if self.named is not None else Implicit(opening_of(self.body.fields)),
            route=ROUTE,
            fingerprint=fingerprint(ROUTE, "" if self.named is None else f"id:{self.named}", self.body.canonical),
            idempotency_key=self.key,
            policy=self.policy,
        )


async def parse(request: web.Request) -> ChatRequest:
    """The only place that finds a request wrong in itself. Raises InvalidRequest."""
    key = idempotency_key(request.headers)
    named = single_header(request.headers, "X-Hermes-Session-Id", "invalid_session_id")
    policy = single_header(request.headers, "X-Hermes-Turn-Policy", "invalid_turn_policy")
    body = parse_chat(await context.read_body(request))
    messages, roles = split_messages(body.raw)
    return ChatRequest(
        tenant=request[context.TENANT],
        body=body,
        key=key,
        named=session_id(named) if named is not None else None,
        policy=turn_policy(policy) if policy else None,
        messages=messages,
        new_input=new_input(messages, roles),
    )


async def post(request: web.Request) -> web.StreamResponse:
    """Answers with what the turn said, or what an earlier one with the same key said."""
    asked = await parse(request)
    wanted = asked.turn_request()
    client = ClientStream(request)
    try:
        with context.ended_by_disconnect(request):
            async with request.app[context.COORDINATOR].turn(wanted) as turn:
                # A waiter leaves with its client, a running turn only when no retry can fetch its answer.
                context.outlives_its_client(request, resumable=asked.key is not None)
                request[context.SESSION] = turn.session_id
                if turn.replay:
                    return await replays.send(request, client, turn.replay, asked.body)
                return await _run(request, asked, turn, client)
    except CoordinatorError as error:
        answer = answer_of(error, keyed=asked.key is not None)
        if not client.is_open or answer is None:
            raise
        await client.send([error_event(answer)])
        return await client.close()


async def _run(request: web.Request, asked: ChatRequest, turn: Turn, client: ClientStream) -> web.StreamResponse:
    """Runs the granted turn. Whatever comes of it is committed, or taken back, before the client has it all."""
    settings = request.app[context.SETTINGS].coordinator
    body = await _upstream_body(asked, turn)
    executor = request.app[context.EXECUTOR]
    try:
        async with (
            asyncio.timeout(settings.turn_limit_ms / 1000),
            executor.chat(body, stream=asked.body.stream, headers={}) as answer,
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


async def _upstream_body(asked: ChatRequest, turn: Turn) -> bytes:
    """What the upstream is sent: the client's own bytes, or with the stored transcript in front of what is new."""
    if not turn.grant.history_kept:
        return asked.body.raw
    if not asked.new_input:
        await turn.refuse()
        raise InvalidRequest(
            "messages must end with something new: this session's history is kept by the gateway.",
            "messages",
            "invalid_messages",
        )
    return with_messages(asked.body.raw, [*turn.history, *asked.new_input])


async def _json(request: web.Request, asked: ChatRequest, turn: Turn, answer: Answer) -> web.StreamResponse:
    result = Result(
        status=answer.status,
        body=answer.body or b"",
        content_type=answer.content_type,
        headers=json.dumps(answer.headers).encode(),
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
    headers = json.dumps(answer.headers).encode()
    result = Result(status=200, body=aggregator.body(), content_type=JSON, headers=headers)
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


def _transcript(asked: ChatRequest, message: bytes | None) -> list[bytes]:
    return [*asked.new_input, message] if message is not None else []
