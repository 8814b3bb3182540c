"""When an answer counts as safe: what goes out behind the calls of a batch, and what the replies to it mean."""

from collections.abc import Sequence
from typing import Any

from coordinator.scripts import Value
from coordinator.settings import Settings

# Written also while the store is full: what is told again has to be safe then too.
_BARRIER = "#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], '1')"


class Durability:
    """The class that was chosen: `primary`, `replicated` or `fsynced`."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.durability
        self._replicas = settings.safe_replicas
        self._timeout_ms = settings.durability_timeout_ms

    @property
    def waits(self) -> bool:
        """Whether there is anything to wait for beyond the primary's reply."""
        return self.name != "primary"

    @property
    def probe(self) -> tuple[Value, ...]:
        """A command that a server refuses which cannot do what is asked for."""
        return ("WAITAOF", 1, 0, 1) if self.name == "fsynced" else ("WAIT", 0, 1)

    def commands(self, barriers: Sequence[str]) -> list[tuple[Value, ...]]:
        """What goes out behind the calls, on the same connection. The barriers make the wait mean something also when
        the scripts wrote nothing this time: it covers all that the connection wrote before."""
        wait: tuple[Value, ...] = ("WAIT", self._replicas, self._timeout_ms)
        if self.name == "fsynced":
            wait = ("WAITAOF", 1, self._replicas, self._timeout_ms)
        return [*(("EVAL", _BARRIER, 1, barrier) for barrier in barriers), wait]

    def reached(self, barriers: Sequence[str], replies: Sequence[Any]) -> set[str]:
        """The barriers before which everything is safe, by the replies to `commands`."""
        *written, waited = replies
        if not self._is_safe(waited):
            return set()
        return {barrier for barrier, reply in zip(barriers, written, strict=True) if not isinstance(reply, Exception)}

    def _is_safe(self, waited: Any) -> bool:
        if self.name == "fsynced":
            return isinstance(waited, list) and waited[0] >= 1 and waited[1] >= self._replicas
        return isinstance(waited, int) and waited >= self._replicas
