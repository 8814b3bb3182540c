"""A stored turn as a response object, in whatever state it is."""

import json
from collections.abc import Mapping

from coordinator import TurnView
from gateway_adapter.errors import ErrorAnswer
from gateway_adapter.replays import LogForm
from gateway_adapter.responses.asked import Asked, of_record
from gateway_adapter.responses.lookup import response_id
from gateway_adapter.responses.objects import ResponseStatus, response_object
from gateway_adapter.responses.retold import retold
from gateway_adapter.responses.streaming import ResponseEvents, event_block

_STATUS: Mapping[str, ResponseStatus] = {
    "accepted": "queued",
    "running": "in_progress",
    "failed": "failed",
    "refused": "failed",
    "cancelled": "cancelled",
    "interrupted": "failed",
}


def asked_of(tenant: str, view: TurnView) -> Asked:
    """What the turn was asked for."""
    return of_record(tenant, view.route, view.about)


def object_of(tenant: str, view: TurnView) -> dict[str, object]:
    """The response object as it is now."""
    if view.state == "completed" and view.result is not None and view.result.body:
        final: dict[str, object] = json.loads(view.result.body)
        return final
    return response_object(
        asked_of(tenant, view).body,
        response_id=response_id(view.home, view.turn),
        created_at=view.started_ms // 1000,
        status=_STATUS.get(view.state, "failed"),
        error=error_of(view),
        conversation_id=view.session_id,
    )


def error_of(view: TurnView) -> dict[str, str] | None:
    """Why it failed, None when it did not."""
    if view.state == "interrupted":
        return {"code": "interrupted", "message": "The replica that made this response is gone."}
    if view.state == "completed":
        return {"code": "not_kept", "message": "The answer was too large to be kept."}
    if view.state not in ("failed", "refused"):
        return None
    try:
        told = json.loads(view.result.body if view.result else b"")["error"]
        return {"code": str(told["code"] or "upstream_refused"), "message": str(told["message"])}
    except (ValueError, KeyError, TypeError):
        return {"code": "upstream_failed", "message": "The turn failed."}


def log_form(tenant: str) -> LogForm:
    """How a response's stream is told to its end, where its log does not."""
    return LogForm(lambda view: _last_events(tenant, view), error_block)


def error_block(error: ErrorAnswer, number: int) -> bytes:
    """The event that says that the stream does not go on here: whoever does counts from `number`, the one before."""
    return event_block("error", max(number, 0), {"code": error.code, "message": error.message, "param": error.param})


def _last_events(tenant: str, view: TurnView) -> list[bytes]:
    """A whole answer as events, or the last event of a turn that ended without saying so itself."""
    if view.state == "completed" and view.result is not None and view.result.body:
        return retold(view.result.body)
    events = ResponseEvents(
        asked_of(tenant, view).body,
        response_id(view.home, view.turn),
        view.started_ms // 1000,
        view.session_id,
        first_number=view.event_count,
    )
    error = error_of(view)
    return events.fail(error["code"], error["message"]) if error else events.cancelled()
