"""Everything that can be set, with units and reasons. Durations are whole milliseconds."""

import re
import socket
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

from coordinator.daily import Daily

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

TurnPolicy = Literal["wait", "reject", "interrupt"]


def duration_ms(text: str) -> int:
    """Milliseconds of a duration such as `500ms`, `30s`, `30m`, `24h`, `7d`, or plain `0`.

    Raises:
        ValueError: the text is no such duration.
    """
    match = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", text.strip())
    if match:
        return int(match[1]) * _UNITS_MS[match[2]]
    if text.strip() == "0":
        return 0
    raise ValueError(f"{text!r} is not a duration; write it like 500ms, 30s, 5m, 24h or 7d")


def _replica_name() -> str:
    # The host makes it readable for a person, the random part unique between processes and restarts.
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
    return f"{host}-{uuid4().hex[:8]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a coordinator behaves. `lease_ms`, `implicit_turns` and `transcripts` must be the same on all replicas."""

    replica: str = field(default_factory=_replica_name)
    """Name of this process; its mailbox channel carries it."""
    lease_ms: int = 30_000
    """How long a turn stays its holder's without renewal: the longest a dead replica blocks a conversation."""
    turn_policy: TurnPolicy = "wait"
    """What a turn does that finds its conversation busy, unless its request says otherwise."""
    turn_wait_ms: int = 45_000
    """The longest a turn waits for its conversation; below the 60 s at which many balancers give up."""
    turn_limit_ms: int = 1_800_000
    """The longest a turn may run; nothing is renewed for ever."""
    queue_limit: int = 32
    """Waiters a conversation may have; a longer queue would outlast `turn_wait_ms` anyway."""
    interrupted_turns: Literal["refuse", "rerun"] = "refuse"
    """What a keyed retry of an interrupted turn gets: it may have had side effects, so refusing is the default."""
    implicit_turns: Literal["shared", "exclusive"] = "shared"
    """Whether turns of conversations found by their opening run side by side."""
    transcripts: Literal["managed", "all"] = "managed"
    """Whose history the store keeps: sessions opened by id, or all."""
    result_ttl_ms: int = 86_400_000
    """How long an answer can be replayed, from the end of its turn."""
    key_ttl_ms: int = 604_800_000
    """How long a used key stays used, from the end of its turn; 0 for ever."""
    response_ttl_ms: int = 2_592_000_000
    """How long a stored response or run can be read and continued from."""
    unkeyed_ttl_ms: int = 600_000
    """How long the record of a turn without a key is kept: for people who look, nothing reads it."""
    refusal_ttl_ms: int = 60_000
    """How long a refusal stays readable for those who joined the refused turn."""
    session_ttl_ms: int = 2_592_000_000
    """How long an idle session, and a tombstone, is kept."""
    max_running: int = 0
    """Running turns a tenant may have; 0 for any number."""
    max_stored_bytes: int = 4_194_304
    """The largest answer kept for replay: a store is no place for more."""
    idle_ms: int = 0
    """How long a declared conversation may rest before its next turn opens the next generation; 0: for ever."""
    daily: Daily | None = None
    """The time of day at which a resting declared conversation's generation ends; None: at none."""
    record_ttl_ms: int = 2_592_000_000
    """How long a host's record of its own session id is kept after its last use."""
    source: str = "api_server"
    """The source of conversations that requests open."""
    durability: Literal["primary", "replicated", "fsynced"] = "primary"
    """When an answer counts as safe: once the primary has it, once replicas have it, or once it is on disk."""
    durability_replicas: int | None = None
    """Replicas that must have it; None: 1 for `replicated`, 0 for `fsynced`: the primary's own disk is enough then."""
    durability_timeout_ms: int = 700
    """How long to wait for that; below the time-out of the connection."""
    patience_ms: int = 1_800
    """How long a call to the store may take in all; the client is told within 2 s."""
    poll_ms: int = 1_000
    """How often a waiter asks again by itself, should the message that wakes it be lost."""
    vouch_ms: int = 3_000
    """How long a waiter counts after it asked: three polls, so one lost poll costs no place."""
    commit_patience_ms: int = 4_000
    """How long a turn that ran waits for the confirmation of its commit before it reports `CommitUnconfirmed`."""

    def agree(self, **values: int | str) -> None:
        """Takes over what the fleet has agreed on: the one change these settings see after they were made, because
        replicas that differ in it would undo each other's promises."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __post_init__(self) -> None:
        for name in ("lease_ms", "turn_limit_ms", "patience_ms", "poll_ms", "vouch_ms", "result_ttl_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")
        for name in (
            "turn_wait_ms",
            "queue_limit",
            "key_ttl_ms",
            "session_ttl_ms",
            "idle_ms",
            "max_running",
            "max_stored_bytes",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.implicit_turns not in ("shared", "exclusive"):
            raise ValueError("implicit_turns must be shared or exclusive")
        self._check_durability()
        if self.lease_ms < 500:
            raise ValueError("lease_ms must be at least 500: a renewal has to fit in several times")
        if "@" in self.replica or " " in self.replica or not self.replica:
            raise ValueError("a replica's name must not be empty or contain '@' or a space")
        if not self.source or len(self.source) > 256:
            raise ValueError("source must have 1 to 256 characters")

    def _check_durability(self) -> None:
        if self.durability == "replicated" and self.safe_replicas < 1:
            raise ValueError("durability replicated needs durability_replicas of at least 1")
        if self.durability_timeout_ms >= self.store_timeout_s * 1000 and self.durability != "primary":
            raise ValueError("durability_timeout_ms must be below half of patience_ms and a sixth of lease_ms")

    @property
    def safe_replicas(self) -> int:
        """Replicas that must have an answer before it counts as safe."""
        if self.durability_replicas is not None:
            return self.durability_replicas
        return 1 if self.durability == "replicated" else 0

    @property
    def store_timeout_s(self) -> float:
        """Socket and connect time-out: several fit into a lease, two into `patience_ms`."""
        return min(self.patience_ms / 2_000, self.lease_ms / 6_000)
