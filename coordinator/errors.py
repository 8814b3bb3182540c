"""What can go wrong, grouped by what the caller does next.

CoordinatorError
├── Refused                a correct system; the caller waits, changes its request, or stops
│   ├── SessionNotFound       retired, unknown, or another tenant's: stop using the id
│   ├── AdmissionConflict     the key names another request: use a new key
│   ├── UnknownExecution      the key's turn was interrupted, nobody knows how far it came
│   ├── IdempotencyExpired    the key was used, its answer is no longer kept
│   ├── EventsLost            events of a stream are not, or no longer, kept
│   ├── StaleGeneration       the conversation moved on meanwhile
│   ├── SessionBusy           another turn holds the conversation: try again later
│   ├── QueueFull             too many wait already: try again later
│   ├── LimitReached          the tenant runs as many turns as it may: try again later
│   └── Draining              this replica is shutting down: try again, at another
├── TurnEnded              stop writing: the turn is not the caller's any more
│   ├── LeaseLost             its lease ran out or somebody else took the conversation
│   └── TurnCancelled         it was asked to stop
├── StoreUnavailable       the store cannot serve and nothing was dispatched; safe to send again
│   ├── StoreFull             it takes nothing new; what it holds can still be read
│   └── NotSafeYet            it was done, but is not yet where it was asked to be; the same call again tells when it is
├── NewerSchema            the store belongs to a newer version of this library: do not serve
├── CommitUnconfirmed      dispatched, and nobody can say yet whether it was recorded
└── ScriptError            a bug, or a key of ours holding what we did not write
"""


class CoordinatorError(Exception):
    """Base of everything this library raises on purpose."""


class Refused(CoordinatorError):
    """The request was understood and refused; nothing ran."""


class SessionNotFound(Refused):
    """The session id is retired, unknown, or belongs to somebody else: the three are not told apart."""


class AdmissionConflict(Refused):
    """The idempotency key already names another request."""


class UnknownExecution(Refused):
    """The key's turn was interrupted (its replica died) and is not run again by itself."""


class IdempotencyExpired(Refused):
    """The key was used and its answer is no longer, or never was, kept."""


class EventsLost(Refused):
    """Events of a turn are not, or no longer, kept: the stream cannot be told without a gap."""


class StaleGeneration(Refused):
    """The conversation moved to another generation while the caller waited."""


class RetryLater(Refused):
    """Refused for now. `retry_after_s` is a hint in whole seconds."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SessionBusy(RetryLater):
    """Another turn holds the conversation. `holder` is the replica that runs it, '' when unknown."""

    def __init__(self, message: str, retry_after_s: int = 1, holder: str = "") -> None:
        super().__init__(message, retry_after_s)
        self.holder = holder


class QueueFull(RetryLater):
    """As many turns wait for the conversation as may."""


class LimitReached(RetryLater):
    """The tenant runs as many turns as it may."""


class Draining(Refused):
    """This replica is shutting down: it starts nothing new and lets nobody wait."""


class TurnEnded(CoordinatorError):
    """The turn is not the caller's any more: stop its work, write nothing."""


class LeaseLost(TurnEnded):
    """The lease ran out, or somebody else acts for the conversation now."""


class TurnCancelled(TurnEnded):
    """The turn was asked to stop."""


class StoreUnavailable(CoordinatorError):
    """The store cannot serve. Raised only while nothing was dispatched: the same call may be sent again."""


class StoreFull(StoreUnavailable):
    """The store is out of memory and takes nothing new."""


class NotSafeYet(StoreUnavailable):
    """Carried out, but not yet copied or written as widely as the durability class asks for."""


class NewerSchema(CoordinatorError):
    """The store's schema is newer than this library knows."""


class CommitUnconfirmed(CoordinatorError):
    """The turn ran and the store did not confirm in time that it was recorded."""


class ScriptError(CoordinatorError):
    """A script stopped before its first write: a bug of ours, or a key holding what we did not write."""
