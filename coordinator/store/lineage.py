"""Whether the store is still the one that it was: a restart, a failover or a restored copy may have lost steps."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Descent:
    """What a server says of itself: which process it is, and whose writes its data set goes on with."""

    run_id: str
    replication_id: str


class Lineage:
    """The servers that a replica met at the places of its store, over all its connections, from any thread.

    A place is a role that one server at a time plays: the store, the primary behind sentinels, a node of a cluster.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Descent] = {}
        self._told: list[Callable[[], None]] = []
        self.changes = 0
        """How often another server was met than before. What is sent must not have been decided on before a change."""

    def on_change(self, tell: Callable[[], None]) -> None:
        """Has that called at every change, in the thread that noticed, before `changes` counts it."""
        self._told.append(tell)

    def observe(self, place: str, descent: Descent, *, successor: bool = False) -> None:
        """A connection was made. `successor`: the place is new, and took over from another one."""
        with self._lock:
            before = self._known.get(place)
            self._known[place] = descent
            if before == descent or (before is None and not successor):
                return
            for tell in self._told:
                tell()
            self.changes += 1
            count = self.changes
        _log.warning(
            "the store was restarted or replaced (%s: %s); what it had not kept is lost (change %d)",
            place,
            _difference(before, descent),
            count,
        )


def _difference(before: Descent | None, now: Descent) -> str:
    if before is None:
        return f"run id {now.run_id[:8]}, new here"
    run = f"run id {before.run_id[:8]} -> {now.run_id[:8]}"
    return f"{run}, replication id {before.replication_id[:8]} -> {now.replication_id[:8]}"
