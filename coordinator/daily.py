"""The time of day at which resting conversations begin anew."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_AROUND = range(-2, 3)  # the last two days and the next two: no clock of ours is further off the store's than that


@dataclass(frozen=True, slots=True)
class Daily:
    """A time of day in a zone, as `04:00@Europe/Berlin`."""

    at: time
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `HH:MM@Zone`. Raises ValueError."""
        match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)@(\S+)", text.strip())
        if not match:
            raise ValueError(f"{text!r} is not a time of day; write it like 04:00@Europe/Berlin")
        try:
            zone = ZoneInfo(match[3])
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{match[3]!r} is not a known time zone; write it like Europe/Berlin or UTC") from None
        return cls(time(int(match[1]), int(match[2])), zone)

    def around(self, store_ms: int) -> list[int]:
        """The moments (ms since the epoch) of the last and next two days, ascending. Which of them is past is for the
        store to say. A time that a day skips or repeats, as clocks change, counts once: as its first."""
        day = datetime.fromtimestamp(store_ms / 1000, UTC).astimezone(self.zone).date()
        moments = [datetime.combine(day + timedelta(days=days), self.at, self.zone) for days in _AROUND]
        return sorted(int(moment.timestamp() * 1000) for moment in moments)

    def __str__(self) -> str:
        return f"{self.at:%H:%M}@{self.zone.key}"
