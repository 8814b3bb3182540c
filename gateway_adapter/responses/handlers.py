"""`/v1/responses`: one request, top to bottom, and what is kept of it afterwards."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

import structlog
from aiohttp import web

from coordinator import Coordinator, CoordinatorError, EventsLost, Replay, SessionBusy, TurnView
from gateway_adapter import context, replays
from gateway_adapter.errors import INTERNAL, ErrorAnswer, answer_of
from gateway_adapter.event_stream import ClientStream
from gateway_adapter.responses.asked import Asked, parse
from gateway_adapter.responses.dialect import ResponsesDialect
from gateway_adapter.responses.lookup import RESPONSES, find
from gateway_adapter.responses.objects import input_item_list
from gateway_adapter.responses.stored import asked_of, error_block, log_form, object_of
from gateway_adapter.running import run
from gateway_adapter.workers import WORKERS

_log = structlog.get_logger(__name__)

_SETTLE_S = 5.0  # how long a cancellation waits for the replica that holds the turn


async def post(request: web.Request) -> web.StreamResponse:
    """Makes a response, or writes it down to be made in the background."""
    asked = await parse(request, RESPONSES, await context.read_body(request))
    if asked.body.background:
        return await _background(request, asked, *await accept(request, asked))
    return await _foreground(request, asked)


async def accept(request: web.Request, asked: Asked) -> tuple[TurnView, bool]:
    """Writes background work down and has it started. Returns its turn, and whether it was there before."""
    coordinator = request.app[context.COORDINATOR]
    wanted = await asked.turn_request(coordinator, request.app[context.SETTINGS].coordinator)
    accepted = await coordinator.accept(wanted)
    request[context.SESSION], request[context.ABOUT] = accepted.session_id, asked.about()
    if isinstance(accepted, Replay):
        # What it asked is erased with its session, and is the same that is asked now.
        view = accepted.turn
        return view if view.about else replace(view, about=asked.body.raw), True
    request.app[WORKERS].start(asked.tenant, accepted)
    return accepted, False


async def _background(request: web.Request, asked: Asked, view: TurnView, again: bool) -> web.StreamResponse:
    headers = context.session_headers(request) | (replays.REPLAYED if again else {})
    if asked.body.stream:
        client = ClientStream(request, numbered=True)
        after = replays.last_event_id(request)
        return await replays.send_log(request, client, view, after, headers, log_form(asked.tenant))
    return web.json_response(object_of(asked.tenant, view), headers=headers)


async def _foreground(request: web.Request, asked: Asked) -> web.StreamResponse:
    coordinator, settings = request.app[context.COORDINATOR], request.app[context.SETTINGS]
    wanted = await asked.turn_request(coordinator, settings.coordinator)
    client = ClientStream(request, numbered=asked.resumable)
    dialect: ResponsesDialect | None = None
    try:
        with context.ended_by_disconnect(request):
            async with coordinator.turn(wanted) as turn:
                context.outlives_its_client(request, resumable=asked.resumable)
                request[context.SESSION] = turn.session_id
                if turn.replay:
                    request[context.ABOUT] = asked.about(await replays.scope_of(request, turn.replay))
                    return await _replay(request, client, asked, turn.replay)
                if asked.body.stream:
                    await replays.refuse_going_on(request, turn)
                about = asked.about(turn.scope)
                request[context.ABOUT] = about
                dialect = ResponsesDialect(asked, turn, settings, request.headers, stream=asked.body.stream)
                result = await run(request.app, turn, dialect, client, about)
                return replays.json_response(request, result) if result else client.response
    except Exception as error:
        if not client.is_open or dialect is None:
            raise
        # What was sent cannot be taken back: whatever went wrong is the stream's last event.
        answer = answer_of(error, keyed=asked.key is not None)
        if answer is None:
            _log.exception("a stream failed")
        return await _end(request, client, dialect, answer or INTERNAL)


async def _end(
    request: web.Request, client: ClientStream, dialect: ResponsesDialect, error: ErrorAnswer
) -> web.StreamResponse:
    """Ends a stream whose turn was lost: as everybody is told from then on, where its events are kept."""
    if not dialect.resumable:
        await client.send(dialect.error_events(error))
        return await client.close()
    tenant, view = request[context.TENANT], None
    with contextlib.suppress(CoordinatorError):
        view = await _coordinator(request).turn_view(tenant, dialect.turn_id)
    if view is not None and view.ended:
        return await replays.send_log(request, client, view, client.last, {}, log_form(tenant))
    await client.fail(error_block(error, client.last))
    return await client.close()


async def _replay(request: web.Request, client: ClientStream, asked: Asked, replay: Replay) -> web.StreamResponse:
    view = replay.turn
    streamed = view.state in ("running", "completed") or view.kept == "events"
    if not (asked.body.stream and streamed):
        return replays.recorded(request, replay)
    about = replays.headers_of(view.result) if view.result else {}
    headers = {**about, **context.session_headers(request), **replays.REPLAYED}
    return await _stream(request, client, view, replays.last_event_id(request), headers)


async def _stream(
    request: web.Request, client: ClientStream, view: TurnView, after: int, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Sends the events behind number `after`; from the answer itself where they are no longer kept."""
    form = log_form(request[context.TENANT])
    try:
        return await replays.send_log(request, client, view, after, headers, form)
    except EventsLost:
        if after >= 0 or view.state != "completed":
            raise
    await client.open(headers)
    await client.send(form.end(view))
    return await client.close()


async def get(request: web.Request) -> web.StreamResponse:
    """The response as it is now; with `stream=true` its events behind `starting_after`, to its end."""
    view = await _view(request)
    tenant = request[context.TENANT]
    if request.query.get("stream", "false").lower() not in ("true", "1"):
        return web.json_response(object_of(tenant, view))
    text = request.query.get("starting_after")
    after = -1 if text is None else replays.event_number(text, "starting_after", "invalid_starting_after")
    client = ClientStream(request, numbered=True)
    return await _stream(request, client, view, max(after, replays.last_event_id(request)), {})


async def delete(request: web.Request) -> web.Response:
    """Deletes what is kept of a response; its session goes on."""
    view = await _view(request)
    if not await _coordinator(request).hide_turn(request[context.TENANT], view.turn):
        raise SessionBusy("the response is still being made", holder=view.replica)
    return web.json_response({"id": request.match_info["id"], "object": "response", "deleted": True})


async def cancel(request: web.Request) -> web.Response:
    """Stops a background response, wherever it is being made; one that has ended stays as it is."""
    view = await stop(request, await _view(request))
    return web.json_response(object_of(request[context.TENANT], view))


async def stop(request: web.Request, view: TurnView) -> TurnView:
    """Asks a turn to stop and waits a moment for its end. Returns it as it is then."""
    coordinator, tenant = _coordinator(request), request[context.TENANT]
    await coordinator.cancel_turn(tenant, view.turn)
    current: TurnView | None = view
    try:
        async with asyncio.timeout(_SETTLE_S):
            while current is not None and not current.ended:
                current = await coordinator.turn_view(tenant, view.turn)
                if current is not None and not current.ended:
                    await asyncio.sleep(0.05)
    except TimeoutError:
        pass  # it stops at its next renewal; what is known now is told
    return current or view


async def input_items(request: web.Request) -> web.Response:
    """What the response was asked: its input, item by item."""
    view = await _view(request)
    items = input_item_list(asked_of(request[context.TENANT], view).body.input_items, request.match_info["id"])
    return web.json_response(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": False,
        }
    )


async def _view(request: web.Request) -> TurnView:
    return await find(_coordinator(request), request[context.TENANT], request.match_info["id"])


def _coordinator(request: web.Request) -> Coordinator:
    return request.app[context.COORDINATOR]
