"""What the coordinator is asked and what it answers, as values."""

from dataclasses import dataclass, field
from typing import Literal

from coordinator.identity import Address
from coordinator.settings import TurnPolicy

TurnState = Literal["accepted", "running", "completed", "failed", "cancelled", "interrupted", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One request for a turn."""

    tenant: str
    address: Address
    route: str
    """What is asked for, as a word: part of the record, shown to people."""
    fingerprint: str = ""
    """Digest of everything that makes two requests the same (`identity.fingerprint`); matters only with a key."""
    idempotency_key: str | None = None
    policy: TurnPolicy | None = None
    """Overrides the settings' `turn_policy`."""
    follow: bool = False
    """Whether a turn that is still running with this key is a replay too, once it has events: to be followed live."""
    about: bytes = b""
    """Opaque bytes kept with the turn from its start: what its host wants to tell of it while it has no answer."""
    stored: bool = False
    """Whether the answer is kept for `response_ttl_ms`, so that it can be read and continued from."""
    history: Literal["client", "store"] | None = None
    """Who keeps the history of a session that this request opens; None: as its kind of address does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a turn's client was answered. Bytes are kept and replayed as they are."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: bytes = b""


@dataclass(frozen=True, slots=True)
class Late:
    """The store got to it after the caller's patience had ended: nothing was done."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The turn may run."""

    session_id: str
    generation: int
    nonce: str
    fence: int
    history_kept: bool
    """Whether the store keeps the session's history."""
    history: list[bytes]
    """The transcript so far, one JSON message an item; empty when the client keeps it."""
    granted_ms: int
    """When, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The turn is written down, with its request, to be granted later."""

    session_id: str
    generation: int
    accepted_ms: int
    """When, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn has reached this state already."""

    state: TurnState


@dataclass(frozen=True, slots=True)
class Seen:
    """The idempotency key names this request's earlier turn."""

    turn: str
    cid: str
    session_id: str
    state: TurnState


@dataclass(frozen=True, slots=True)
class Queued:
    """Waiting, at this place of the queue (1 is the head)."""

    place: int
    session_id: str
    holder: str
    left_ms: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Another turn holds the conversation."""

    holder: str
    left_ms: int


@dataclass(frozen=True, slots=True)
class Word:
    """A refusal that carries no facts: conflict, not_found, moved, branch, full, limited, lost, cancelled."""

    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """A turn as its record tells it."""

    turn: str
    state: TurnState
    cid: str
    session_id: str
    generation: int
    fence: int
    replica: str
    route: str
    key_digest: str
    """Digest of its idempotency key, '' without one."""
    started_ms: int
    ended_ms: int | None
    left_ms: int
    """What is left of a running turn's lease."""
    kept: Literal["events", "body", "none"]
    """What a retry can be answered from."""
    event_count: int
    result: Result | None
    length: int = 0
    """Messages of the transcript once it had ended."""
    stored: bool = False
    """Whether it is kept to be read and continued from."""
    hidden: bool = False
    """Whether its answer was deleted: only its key still gets it."""
    request: bytes = b""
    """What was accepted, while it has not started."""
    about: bytes = b""
    """What the request said of itself, opaque."""
    accepted_in: str = ""
    """The conversation in which it was accepted; '' for `cid`. It may have been granted in a fork of that."""

    @property
    def home(self) -> str:
        """The conversation that its first client was told: the same for the whole life of the turn."""
        return self.accepted_in or self.cid

    @property
    def ended(self) -> bool:
        """Whether its state is the last one."""
        return self.state not in ("accepted", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTurn:
    """A running turn of a session."""

    turn: str
    replica: str
    fence: int
    expires_in_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A session as its conversation's record tells it. Times are ms since the epoch, by the store's clock."""

    id: str
    cid: str
    kind: str
    source: str
    history: str
    generation: int
    scope: str
    turns: int
    created_ms: int
    active_ms: int
    notes: bytes = b""
    """What its client noted of it, opaque."""
    live: list[LiveTurn] = field(default_factory=list)
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer that an earlier turn with this key was given.

    `turn.result` is None for a turn that failed without an answer of its own.
    """

    turn: TurnView

    @property
    def session_id(self) -> str:
        """The session that the answer was given in; it may be retired since."""
        return self.turn.session_id


Relation = Literal["none", "compression", "branch", "delegate", "tool", "review"]
"""What a host's session is to its parent. After a compression it goes on; the others are forks."""

BOUNDARIES = frozenset(
    {"session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired", "deleted"}
)
"""Reasons that end a generation. Any other end of a host's session leaves its conversation where it is."""

RESET_REASONS = BOUNDARIES - {"deleted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A boundary, and what it opened."""

    generation: int
    """The generation that is current now."""
    session_id: str
    """The id that its session has, or will have with its first turn."""
    ended_session_id: str | None
    """The session that ended, None when none was open."""
    reason: str
    stopped: list[str]
    """Turns that were live in it and are asked to stop; empty when the same reset is answered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSession:
    """What is recorded of a host's own session id."""

    session_id: str
    source: str
    key: str | None
    """The declared key it is bound to."""
    cid: str
    """The conversation of (source, key), '' when bound to none."""
    generation: int
    nonce: str
    relation: Relation
    ended: str | None
    """Why it ended, None while it has not."""

    @property
    def is_fork(self) -> bool:
        """Whether it goes its own way: a branch, delegate, tool child or background review."""
        return self.relation in ("branch", "delegate", "tool", "review")
