"""Recorded answers as HTTP: replays in either form, and what is recorded of refusals and failures."""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from aiohttp import web

from coordinator import CoordinatorError, EventsLost, Replay, Result, Turn, TurnCancelled, TurnView, UnknownExecution
from gateway_adapter import context
from gateway_adapter.completions import as_events
from gateway_adapter.errors import INTERNAL, NO_RETRY, RETRY, ErrorAnswer, answer_of
from gateway_adapter.event_stream import ClientStream, error_event
from gateway_adapter.executors.base import UpstreamFailed, UpstreamRefused
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.requests import ChatBody, single_header
from gateway_adapter.sse import event

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
REPLAYED = {"Idempotency-Replayed": "true", **NO_RETRY}


async def send(request: web.Request, client: ClientStream, replay: Replay, asked: ChatBody) -> web.StreamResponse:
    """The answer that an earlier request with the key was given, in the form that this one asks for."""
    view, result = replay.turn, replay.turn.result or _failed()
    if view.state == "refused":
        return recorded(request, replay)
    session = context.session_headers(request)
    after = last_event_id(request)
    form = LogForm(partial(_chat_end, asked.include_usage), lambda error, _: error_event(error))
    if asked.stream and (view.state == "running" or view.kept == "events"):
        headers = {**(headers_of(view.result) if view.result else {}), **session, **REPLAYED}
        try:
            return await send_log(request, client, view, after, headers, form)
        except EventsLost:
            if after >= 0 or view.state != "completed":
                raise
            # The log went before the answer did: the answer can be told again all the same.
    if after >= 0:
        raise EventsLost("the events of this answer are not kept")
    if asked.stream and view.state == "completed":
        await client.open({**headers_of(result), **session, **REPLAYED})
        await client.send(as_events(result.body, asked.include_usage))
        return await client.close()
    return recorded(request, replay)


def recorded(request: web.Request, replay: Replay) -> web.Response:
    """The recorded answer as JSON."""
    result = replay.turn.result or _failed()
    return json_response(request, result, NO_HEADERS if replay.turn.state == "refused" else REPLAYED)


@dataclass(frozen=True, slots=True)
class LogForm:
    """How an endpoint tells what no log holds."""

    end: Callable[[TurnView], list[bytes]]
    """The last events of a turn that ended without one of its own; the first has the number `event_count`."""
    error: Callable[[ErrorAnswer, int], bytes]
    """That the stream does not go on here, though the turn may. It comes behind the event with that number."""


async def send_log(
    request: web.Request, client: ClientStream, view: TurnView, after: int, headers: Mapping[str, str], form: LogForm
) -> web.StreamResponse:
    """Sends a turn's events behind number `after`, as they come, to its end; from whichever replica.

    Raises:
        EventsLost: before the stream opens; later it is its last event.
    """
    coordinator, tenant = request.app[context.COORDINATOR], request[context.TENANT]
    number, ended = after, None
    try:
        async with contextlib.aclosing(coordinator.follow(tenant, view, after)) as events:
            async for found in events:
                if client.is_gone:
                    return client.response
                await _send_one(client, found, headers)
                number = found[0] if found else number
        ended = await coordinator.turn_view(tenant, view.turn)
    except TurnCancelled:
        if not client.is_open:
            raise
    except CoordinatorError as error:
        if not client.is_open:
            raise
        await client.fail(form.error(answer_of(error) or INTERNAL, number))
        return await client.close()
    if not client.is_open:
        await client.open(headers)
    if ended is None:  # its session was deleted
        ended = replace(view, state="cancelled", kept="none", event_count=number + 1)
    if ended.kept != "events" and number < ended.event_count:
        await client.send(form.end(ended), ended.event_count)
    return await client.close()


async def _send_one(client: ClientStream, found: tuple[int, bytes] | None, headers: Mapping[str, str]) -> None:
    if not client.is_open:
        await client.open(headers)
    if found is None:
        await client.keep_alive()
    else:
        await client.send([found[1]], found[0])


async def refuse_going_on(request: web.Request, turn: Turn) -> None:
    """Refuses a turn whose client wants to go on with a stream of which nothing is kept: this would be another one.

    Raises:
        EventsLost: it does; nothing ran, and its key is free.
    """
    if last_event_id(request) >= 0:
        await turn.refuse()
        raise EventsLost("the events of this answer are not kept")


def last_event_id(request: web.Request) -> int:
    """The number of the last event that the client has; -1 for none. Raises InvalidRequest."""
    text = single_header(request.headers, "Last-Event-ID", "invalid_last_event_id")
    return -1 if text is None else event_number(text, "Last-Event-ID", "invalid_last_event_id")


def event_number(text: str, param: str, code: str) -> int:
    """An event's number as clients write it. Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidRequest(f"{param} must be the number of an event.", param, code)
    return int(text)


def _chat_end(include_usage: bool, view: TurnView) -> list[bytes]:
    if view.state == "completed" and view.result is not None:
        return as_events(view.result.body, include_usage)
    if view.state == "failed" and view.result is not None:
        return [event(view.result.body)]
    early = TurnCancelled("the turn was stopped")
    late = UnknownExecution("the turn was interrupted; nobody knows how far it came")
    return [error_event(answer_of(early if view.state == "cancelled" else late) or INTERNAL)]


def json_response(request: web.Request, result: Result, headers: Mapping[str, str] = NO_HEADERS) -> web.Response:
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
