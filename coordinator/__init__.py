"""Makes the replicas of an LLM gateway behave as one: sessions, turns and keys in Redis, decided atomically."""

from coordinator.coordinator import Coordinator
from coordinator.errors import (
    AdmissionConflict,
    CommitUnconfirmed,
    CoordinatorError,
    Draining,
    IdempotencyExpired,
    LeaseLost,
    LimitReached,
    QueueFull,
    Refused,
    RetryLater,
    ScriptError,
    SessionBusy,
    SessionNotFound,
    StaleGeneration,
    StoreFull,
    StoreUnavailable,
    TurnCancelled,
    TurnEnded,
    UnknownExecution,
)
from coordinator.identity import Explicit, Implicit, Minted, fingerprint
from coordinator.outcomes import LiveTurn, Replay, Result, SessionView, TurnRequest, TurnView
from coordinator.settings import Settings, duration_ms
from coordinator.turn import Turn

__all__ = [
    "AdmissionConflict",
    "CommitUnconfirmed",
    "Coordinator",
    "CoordinatorError",
    "Draining",
    "Explicit",
    "IdempotencyExpired",
    "Implicit",
    "LeaseLost",
    "LimitReached",
    "LiveTurn",
    "Minted",
    "QueueFull",
    "Refused",
    "Replay",
    "Result",
    "RetryLater",
    "ScriptError",
    "SessionBusy",
    "SessionNotFound",
    "SessionView",
    "Settings",
    "StaleGeneration",
    "StoreFull",
    "StoreUnavailable",
    "Turn",
    "TurnCancelled",
    "TurnEnded",
    "TurnRequest",
    "TurnView",
    "UnknownExecution",
    "duration_ms",
    "fingerprint",
]
