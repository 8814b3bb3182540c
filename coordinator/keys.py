"""Names of keys: the only place that spells them. The table with types and lifetimes is in lua/README.md.

All keys of a tenant carry `{tenant}` as their hash tag, so that they share one cluster slot. Ids of clients never
appear in a key: only digests of them do.
"""

import re

SCHEMA = 1
_PREFIX = f"coord{SCHEMA}"

TENANTS = f"{_PREFIX}:tenants"
SETTINGS = f"{_PREFIX}:settings"
REPLICAS = f"{_PREFIX}:replicas"
MAILBOXES = f"{_PREFIX}:replica:"
"""Prefix of the replicas' keys. The channel of the same name is a replica's mailbox."""


def barrier_of(key: str) -> str:
    """The barrier of the tenant that a key belongs to: written with every answer that has to be safe."""
    return key[: key.index("}:") + 2] + "barrier"


_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")


class TenantKeys:
    """The keys of one tenant.

    Raises:
        ValueError: the tenant's name is not 1-64 of `A-Za-z0-9._-`.
    """

    __slots__ = ("_base", "accepted", "cancelling", "erasing", "running", "sessions", "tombstones", "waiting")

    def __init__(self, tenant: str) -> None:
        if not _TENANT.fullmatch(tenant):
            raise ValueError(f"tenant {tenant!r} must be 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
        base = self._base = f"{_PREFIX}:{{{tenant}}}:"
        self.running = base + "running"
        self.waiting = base + "waiting"
        self.cancelling = base + "cancelling"
        self.sessions = base + "sessions"
        self.tombstones = base + "tombstones"
        self.erasing = base + "erasing"
        self.accepted = base + "accepted"

    def conversation(self, cid: str) -> str:
        return f"{self._base}conversation:{cid}"

    def live(self, cid: str) -> str:
        return f"{self._base}live:{cid}"

    def turns(self, cid: str) -> str:
        return f"{self._base}turns:{cid}"

    def leftovers(self, cid: str) -> str:
        return f"{self._base}leftovers:{cid}"

    def purging(self, cid: str) -> str:
        return f"{self._base}purging:{cid}"

    def messages(self, cid: str) -> str:
        return f"{self._base}messages:{cid}"

    def queue(self, cid: str) -> str:
        return f"{self._base}queue:{cid}"

    def turn(self, turn: str) -> str:
        return f"{self._base}turn:{turn}"

    def events(self, turn: str) -> str:
        return f"{self._base}events:{turn}"

    def record(self, digest: str) -> str:
        return f"{self._base}record:{digest}"

    def idempotency(self, digest: str) -> str:
        return f"{self._base}idempotency:{digest}"

    def retired(self, bucket: str) -> str:
        return f"{self._base}retired:{bucket}"
