"""The time of day at which generations end, and which moments that is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import Daily

DAY_MS = 86_400_000


def ms(*fields: int) -> int:
    """A moment of UTC in ms."""
    return int(datetime(*fields, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize("text", ["04:00@Europe/Berlin", "00:00@UTC", "23:59@America/New_York", " 04:00@UTC "])
def test_a_time_of_day_is_read_and_shown(text: str) -> None:
    """C8: as `HH:MM@Zone`."""
    assert str(Daily.parse(text)) == text.strip()


@pytest.mark.parametrize(
    "text",
    ["", "04:00", "4:00@UTC", "24:00@UTC", "04:60@UTC", "04:00@", "04:00@Nowhere/At_All", "04:00@../etc", "x04:00@UTC"],
)
def test_what_is_no_time_of_day_is_refused(text: str) -> None:
    """C8: in words that say how it is written."""
    with pytest.raises(ValueError, match="write it like"):
        Daily.parse(text)


def test_the_moments_around_a_time() -> None:
    """C8: of the last and the next two days, in order, by the zone's calendar."""
    moments = Daily.parse("04:00@Asia/Tokyo").around(ms(2026, 3, 10, 20, 0))  # the 11th there
    assert moments == [ms(2026, 3, day, 19, 0) for day in (8, 9, 10, 11, 12)]


def test_clocks_that_change_neither_drop_nor_double_a_day() -> None:
    """C8: an hour that a day skips or repeats counts once, and days are 23 or 25 hours then."""
    spring = Daily.parse("02:30@Europe/Berlin").around(ms(2026, 3, 29, 12, 0))
    assert [after - before for before, after in pairwise(spring)] == [
        DAY_MS,
        DAY_MS,
        DAY_MS - 3_600_000,
        DAY_MS,
    ]
    autumn = Daily.parse("02:30@Europe/Berlin").around(ms(2026, 10, 25, 12, 0))
    assert autumn[2] == ms(2026, 10, 25, 0, 30)
    assert autumn[3] == ms(2026, 10, 26, 1, 30)
    assert Daily.parse("04:00@Europe/Berlin").around(ms(2026, 3, 29, 12, 0))[2] == ms(2026, 3, 29, 2, 0)


@given(
    st.datetimes(datetime(2001, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001 - made aware below
    st.sampled_from(
        ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia", "Pacific/Kiritimati"]
    ),
    st.times(),
)
def test_the_latest_that_is_past_is_always_among_them(moment: datetime, zone: str, at: object) -> None:
    """C8, B16: also for a store whose clock is a day off the caller's: one of them lies at most a long day behind."""
    daily = Daily.parse(f"{at:%H:%M}@{zone}")
    now = int(moment.replace(tzinfo=UTC).timestamp() * 1000)
    moments = daily.around(now)
    assert moments == sorted(moments)
    for off in (timedelta(), timedelta(days=1), timedelta(days=-1)):
        store = now + int(off.total_seconds() * 1000)
        latest = max(each for each in moments if each <= store)
        assert store - latest <= 2 * DAY_MS  # Apia skipped a whole day once
