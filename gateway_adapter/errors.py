"""From an exception to an answer: one table, and the OpenAI error envelope."""

import json
from dataclasses import dataclass, field

from coordinator import (
    AdmissionConflict,
    CommitUnconfirmed,
    Draining,
    EventsLost,
    IdempotencyExpired,
    LeaseLost,
    LimitReached,
    NotSafeYet,
    QueueFull,
    RetryLater,
    SessionBusy,
    SessionNotFound,
    StaleGeneration,
    StoreUnavailable,
    TurnCancelled,
    UnknownExecution,
)  # fmt: skip
from gateway_adapter.executors.base import UpstreamAuthFailed, UpstreamFailed, UpstreamUnavailable
from gateway_adapter.invalid import InvalidRequest

NO_RETRY = {"x-should-retry": "false"}
RETRY = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as it is sent: status, headers, and the body `{"error": {...}}`."""

    status: int
    code: str
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The OpenAI error envelope."""
        kind = (
            "server_error"
            if self.status >= 500
            else "rate_limit_error"
            if self.status == 429
            else "invalid_request_error"
        )
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


# What each exception is told as: status, code, headers. Looked up along the exception's class hierarchy.
_TABLE: dict[type[Exception], tuple[int, str, dict[str, str]]] = {
    SessionNotFound: (404, "not_found", NO_RETRY),
    SessionBusy: (409, "session_busy", {}),
    QueueFull: (429, "session_queue_full", {}),
    LimitReached: (429, "rate_limit_exceeded", {}),
    AdmissionConflict: (409, "admission_conflict", NO_RETRY),
    UnknownExecution: (409, "unknown_execution", NO_RETRY),
    IdempotencyExpired: (409, "idempotency_expired", NO_RETRY),
    EventsLost: (410, "events_lost", NO_RETRY),
    StaleGeneration: (409, "stale_generation", NO_RETRY),
    LeaseLost: (409, "lease_lost", NO_RETRY),
    TurnCancelled: (409, "turn_cancelled", NO_RETRY),
    NotSafeYet: (503, "storage_unavailable", RETRY),
    StoreUnavailable: (503, "storage_unavailable", RETRY),
    Draining: (503, "gateway_draining", RETRY),
    CommitUnconfirmed: (503, "commit_unconfirmed", NO_RETRY),
    UpstreamUnavailable: (502, "upstream_unavailable", RETRY),
    UpstreamAuthFailed: (502, "upstream_auth_failed", NO_RETRY),
    UpstreamFailed: (502, "upstream_failed", NO_RETRY),
}

# Where the exception's own words could name internals, these are said instead.
_WORDS: dict[type[Exception], str] = {
    NotSafeYet: "The session store could not confirm in time that this is safe; try again.",
    StoreUnavailable: "The session store is not available. Nothing was run; try again.",
    CommitUnconfirmed: "The answer was produced, but it could not be confirmed that it was recorded.",
    Draining: "This replica is shutting down. Nothing was run; try again.",
    UpstreamUnavailable: "The model's server cannot be reached. Nothing was run; try again.",
    UpstreamAuthFailed: "The model's server refused the gateway's credentials.",
    UpstreamFailed: "The model's server failed while it answered.",
}


def answer_of(error: Exception, *, keyed: bool = False) -> ErrorAnswer | None:
    """How an exception is told to the client; None when it is not one of those that are told.

    `keyed`: the request carried an idempotency key, so that a retry after an unconfirmed commit gets the answer.
    """
    if isinstance(error, InvalidRequest):
        return ErrorAnswer(error.status, error.code, error.message, error.param, NO_RETRY)
    for kind in type(error).__mro__:
        if kind in _TABLE:
            status, code, headers = _TABLE[kind]
            if isinstance(error, RetryLater):
                headers = {"Retry-After": str(error.retry_after_s)}
            if isinstance(error, CommitUnconfirmed) and keyed:
                headers = RETRY
            text = _WORDS.get(kind) or str(error)
            return ErrorAnswer(status, code, text[:1].upper() + text[1:], None, headers)
    return None


INTERNAL = ErrorAnswer(500, "internal_error", "The gateway failed.", None, NO_RETRY)
