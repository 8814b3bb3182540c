"""Recorded answers as HTTP: replays in either form, and what is recorded of refusals and failures."""

import asyncio
import contextlib
import json
from dataclasses import replace
from time import monotonic

from aiohttp import web

from coordinator import (
    CommitUnconfirmed,
    Draining,
    IdempotencyExpired,
    Replay,
    Result,
    StoreUnavailable,
    TurnCancelled,
    TurnView,
    UnknownExecution,
)
from gateway_adapter import context, health
from gateway_adapter.completions import as_events
from gateway_adapter.disconnects import is_gone
from gateway_adapter.errors import INTERNAL, NO_RETRY, RETRY, ErrorAnswer, answer_of
from gateway_adapter.event_stream import ClientStream, error_event
from gateway_adapter.executors.base import UpstreamFailed, UpstreamRefused
from gateway_adapter.requests import ChatBody

_LOOK_EVERY_S = 0.1  # how often a follower looks for more: a tenth of a second behind at most
_KEEP_ALIVE_S = 15

REPLAYED = {"Idempotency-Replayed": "true", **NO_RETRY}


async def send(request: web.Request, client: ClientStream, replay: Replay, asked: ChatBody) -> web.StreamResponse:
    """The answer that an earlier request with the key was given, in the form that this one asks for."""
    if replay.turn.state == "running":
        return await _follow(request, client, replay)
    view, result = replay.turn, replay.turn.result or _failed()
    session = context.session_headers(request)
    if view.state == "refused":
        return json_response(request, result, session)
    if asked.stream:
        if view.kept == "events" and await _resend(
            request, client, replay, {**headers_of(result), **session, **REPLAYED}
        ):
            return await client.close()
        if view.state == "completed":
            await client.open({**headers_of(result), **session, **REPLAYED})
            await client.send(as_events(result.body, asked.include_usage))
            return await client.close()
    return json_response(request, result, {**session, **REPLAYED})


async def _follow(request: web.Request, client: ClientStream, replay: Replay) -> web.StreamResponse:
    """Sends the log of a turn that is still running, from its first event on and as it grows, to the turn's end."""
    coordinator, tenant, turn = request.app[context.COORDINATOR], request[context.TENANT], replay.turn.turn
    await client.open({**context.session_headers(request), **REPLAYED})
    sent, quiet_s, view, answered = 0, 0.0, replay.turn, monotonic()
    while True:
        before, ended = sent, view.state != "running"
        with contextlib.suppress(StoreUnavailable):  # a short absence, which the turn itself outlives too
            async for block in coordinator.events(tenant, turn, sent):
                await client.send([block])
                sent += 1
            if ended:
                break
            view = await coordinator.turn_view(tenant, turn) or replace(view, state="interrupted")
            answered = monotonic()
        if is_gone(request):
            return client.response
        if request.app[health.DRAINING]:
            raise Draining("this replica is shutting down")
        if monotonic() > answered + coordinator.settings.lease_ms / 1000:
            raise CommitUnconfirmed("the store did not say what became of the turn")
        quiet_s = 0.0 if sent > before else quiet_s + _LOOK_EVERY_S
        if quiet_s >= _KEEP_ALIVE_S:
            await client.send([client.KEEP_ALIVE])
            quiet_s = 0.0
        if ended or view.state == "running":
            await asyncio.sleep(_LOOK_EVERY_S)
    if view.kept != "events" or sent < view.event_count:
        # No answer's end is in the log: the turn was stopped, died, or had more to say than is kept.
        await client.send([error_event(answer_of(_lost(view)) or INTERNAL)])
    return await client.close()


def _lost(view: TurnView) -> Exception:
    match view.state:
        case "cancelled":
            return TurnCancelled("the turn was stopped")
        case "interrupted":
            return UnknownExecution("the turn was interrupted; nobody knows how far it came")
    return IdempotencyExpired("the rest of the answer was not kept as it was streamed")


async def _resend(request: web.Request, client: ClientStream, replay: Replay, headers: dict[str, str]) -> bool:
    """Sends the log, event for event. Returns False, with nothing sent, when the log is gone."""
    async for block in request.app[context.COORDINATOR].events(request[context.TENANT], replay.turn.turn):
        if not client.is_open:
            await client.open(headers)
        await client.send([block])
    return client.is_open


def json_response(request: web.Request, result: Result, headers: dict[str, str]) -> web.Response:
    """A recorded answer as it is, bytes unchanged."""
    return web.Response(
        status=result.status,
        body=result.body,
        headers={
            **headers_of(result),
            **context.session_headers(request),
            **headers,
            "Content-Type": result.content_type,
        },
    )


def headers_of(result: Result) -> dict[str, str]:
    """The recorded headers."""
    return dict(json.loads(result.headers)) if result.headers else {}


def result_of(error: ErrorAnswer) -> Result:
    """An error as it is recorded."""
    return Result(status=error.status, body=error.body, headers=json.dumps(error.headers).encode())


def refusal_of(refusal: Exception) -> Result:
    """What the client of a turn that never ran is told: the upstream's own words where they are for the client."""
    if not isinstance(refusal, UpstreamRefused):
        return result_of(answer_of(refusal) or INTERNAL)
    headers = dict(refusal.headers)
    if refusal.status in (429, 503):
        headers.setdefault("retry-after", RETRY["Retry-After"])
    if _is_error_envelope(refusal.body):
        return Result(
            status=refusal.status,
            body=refusal.body,
            content_type=refusal.content_type,
            headers=json.dumps(headers).encode(),
        )
    code = "upstream_unavailable" if refusal.status in (429, 503) else "upstream_refused"
    return result_of(ErrorAnswer(refusal.status, code, "The model's server refused the request.", None, headers))


def failure_of(failure: Exception) -> ErrorAnswer:
    """What the client of a turn that failed after its dispatch is told."""
    return answer_of(failure if isinstance(failure, UpstreamFailed) else UpstreamFailed(str(failure))) or INTERNAL


def _failed() -> Result:
    return result_of(failure_of(UpstreamFailed("the turn failed")))


def _is_error_envelope(body: bytes) -> bool:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(decoded, dict) and "error" in decoded
