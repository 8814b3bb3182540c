"""Who a request belongs to: addresses, conversation ids, session ids, digests.

A conversation id (`cid`) is a kind letter and 24 hex of SHA-256 over length-prefixed parts: `i` found by its opening,
`d` declared by (source, key), `x` named by the client, `m` minted. A session id of ours is
`ses_<cid>_<generation>_<nonce>`; an id that a client chose is its own session id.
"""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

Kind = Literal["i", "d", "x", "m"]

_OURS = re.compile(r"ses_([idxm][0-9a-f]{24})_([0-9]{1,15})_([0-9a-f]{16})")
_BUCKETS_BITS = 12  # 4,096 sets: at a million retired ids each is still a compact intset


def framed_digest(*parts: str | bytes) -> bytes:
    """SHA-256 over the parts, each with its length in front: ('a|b', 'c') and ('a', 'b|c') differ."""
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def new_turn() -> str:
    """A turn's token: 32 hex, random."""
    return secrets.token_hex(16)


def new_nonce() -> str:
    """A generation's nonce: 16 hex, random. It keeps a retired id retired even when every counter was lost."""
    return secrets.token_hex(8)


def fingerprint(*parts: str | bytes) -> str:
    """Digest of a request (32 hex), to tell whether two requests under one idempotency key are the same."""
    return framed_digest(*parts).hex()[:32]


def key_digest(key: str) -> str:
    """Digest of an idempotency key (32 hex), as it stands in the name of its record."""
    return framed_digest("idempotency", key).hex()[:32]


@dataclass(frozen=True, slots=True)
class Implicit:
    """The conversation with this opening: the parts that identify it, in order."""

    opening: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Explicit:
    """The session with this id: one of ours, or one that the client chose."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Declared:
    """The conversation that a host names: the pair, never the key alone."""

    source: str
    key: str


@dataclass(frozen=True, slots=True)
class Minted:
    """A new conversation of its own."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The session with this id, going on behind its first `length` messages; where it has more, a fork of it does."""

    session_id: str
    length: int


Address = Implicit | Explicit | Declared | Continuation | Minted


@dataclass(frozen=True, slots=True)
class Target:
    """Where an address leads: the conversation, and what of it was named."""

    cid: str
    named: str = ""
    """The session id that the request names, '' when it names none."""

    @property
    def kind(self) -> Kind:
        """The kind of conversation: how it is found."""
        return self.cid[0]  # type: ignore[return-value]  # every cid is made below or matched by _OURS

    @property
    def retired_id(self) -> str:
        """63-bit digest, decimal, of a client-chosen id: an intset member of 8 bytes. '' for other kinds."""
        return str(int(self.cid[1:17], 16) >> 1) if self.kind == "x" else ""

    @property
    def retired_bucket(self) -> str:
        """Which of the 4,096 sets remembers the id, 3 hex. Taken from other bits than the digest."""
        return self.cid[-_BUCKETS_BITS // 4 :]


def target_of(tenant: str, address: Address) -> Target:
    """The conversation an address leads to, computed without asking the store."""
    match address:
        case Implicit(opening):
            return Target("i" + framed_digest("opening", tenant, *opening).hex()[:24])
        case Explicit(session_id) | Continuation(session_id, _):
            ours = parse_session_id(session_id)
            if ours:
                return Target(ours.cid, session_id)
            return Target("x" + framed_digest("chosen", tenant, session_id).hex()[:24], session_id)
        case Declared(source, key):
            return Target("d" + framed_digest("declared", tenant, source, key).hex()[:24])
        case Minted():
            return Target("m" + secrets.token_hex(12))


@dataclass(frozen=True, slots=True)
class SessionId:
    """The parts of a session id of ours."""

    cid: str
    generation: int
    nonce: str


def parse_session_id(session_id: str) -> SessionId | None:
    """The parts of an id of our full pattern, None for an id that a client chose."""
    match = _OURS.fullmatch(session_id)
    return SessionId(match[1], int(match[2]), match[3]) if match else None


def is_ours(session_id: str) -> bool:
    """Whether an id has our full pattern; any other is one that a client chose."""
    return parse_session_id(session_id) is not None


def generation_of(session_id: str) -> int:
    """The generation a session id stands for; a client-chosen id has only one."""
    ours = parse_session_id(session_id)
    return ours.generation if ours else 1


def record_digest(session_id: str) -> str:
    """Digest of a host's own session id (32 hex), as it stands in the name of its record."""
    return framed_digest("record", session_id).hex()[:32]


def declared_scope(tenant: str, cid: str, generation: int, nonce: str) -> str:
    """Affinity scope of a declared conversation: `gwk_` and 24 hex. The cid stands for tenant, source, key."""
    return "gwk_" + framed_digest("declared", tenant, cid, str(generation), nonce).hex()[:24]


def session_scope(tenant: str, cid: str, session_id: str, generation: int, nonce: str) -> str:
    """Affinity scope of a session: its conversation's when that is declared, else its own."""
    if cid.startswith("d"):
        return declared_scope(tenant, cid, generation, nonce)
    return physical_scope(tenant, session_id, nonce)


def physical_scope(tenant: str, session_id: str, nonce: str) -> str:
    """Affinity scope of a session without a declared key: `gws_` and 24 hex, nothing of the session readable in it."""
    return "gws_" + framed_digest("physical", tenant, session_id, nonce).hex()[:24]
