"""`/v1/runs`: background turns, as somebody watches them who did not wait for the answer."""

from aiohttp import web

from coordinator import TurnView
from gateway_adapter import context, json_text, replays
from gateway_adapter.event_stream import ClientStream
from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.requests import parse_object, session_id
from gateway_adapter.responses import handlers
from gateway_adapter.responses.asked import parse
from gateway_adapter.responses.lookup import RUNS, find, run_id
from gateway_adapter.responses.stored import error_of, log_form, object_of

_STATUS = {"accepted": "queued", "refused": "failed"}


async def post(request: web.Request) -> web.Response:
    """Writes a run down and has it started: 202, whatever becomes of it."""
    raw = await context.read_body(request)
    fields = parse_object(raw)
    named = fields.get("session_id")
    if named is not None and not isinstance(named, str):
        raise InvalidRequest("session_id must be a string.", "session_id", "invalid_session_id")
    if fields.get("stream"):
        raise InvalidRequest("A run is not streamed here: read its events.", "stream", "invalid_stream")
    members = json_text.members(raw)
    members.pop("session_id", None)
    body = json_text.from_members({**members, "background": b"true", "store": b"true"})
    asked = await parse(request, RUNS, body, named)
    view, again = await handlers.accept(request, asked)
    headers = context.session_headers(request) | (replays.REPLAYED if again else {})
    return web.json_response(
        {**run_json(asked.tenant, view), "replayed": again},
        status=202,
        headers={**headers, "Location": f"/v1/runs/{run_id(view.home, view.turn)}"},
    )


async def get(request: web.Request) -> web.Response:
    """The run as it is now."""
    return web.json_response(run_json(request[context.TENANT], await _view(request)))


async def list_runs(request: web.Request) -> web.Response:
    """The runs of a session, in order of their start."""
    wanted = request.query.get("session_id")
    if wanted is None:
        raise InvalidRequest("session_id must name the session.", "session_id", "invalid_session_id")
    tenant = request[context.TENANT]
    views = await request.app[context.COORDINATOR].turns(tenant, session_id(wanted))
    runs = [run_json(tenant, view) for view in views if view.route == RUNS and view.stored and not view.hidden]
    return web.json_response({"object": "list", "data": runs})


async def events(request: web.Request) -> web.StreamResponse:
    """The run's events behind `Last-Event-ID`, as they come, to its end."""
    view, tenant = await _view(request), request[context.TENANT]
    client = ClientStream(request, numbered=True)
    after = replays.last_event_id(request)
    return await replays.send_log(request, client, view, after, {}, log_form(tenant))


async def stop(request: web.Request) -> web.Response:
    """Stops the run, wherever it is; one that has ended stays as it is."""
    view = await handlers.stop(request, await _view(request))
    return web.json_response(run_json(request[context.TENANT], view))


def run_json(tenant: str, view: TurnView) -> dict[str, object]:
    """A run: its turn, and the response that it makes."""
    response = object_of(tenant, view)
    return {
        "id": run_id(view.home, view.turn),
        "run_id": run_id(view.home, view.turn),
        "object": "run",
        "status": _STATUS.get(view.state, view.state),
        "session_id": view.session_id,
        "response_id": response["id"],
        "model": response["model"],
        "created_at": view.started_ms // 1000,
        "ended_at": view.ended_ms // 1000 if view.ended_ms else None,
        "output": response["output"],
        "usage": response["usage"],
        "error": error_of(view) if view.state != "completed" else response.get("error"),
        "metadata": response["metadata"],
    }


async def _view(request: web.Request) -> TurnView:
    return await find(request.app[context.COORDINATOR], request[context.TENANT], request.match_info["id"])
