"""How durations, sizes and addresses are written and shown."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from gateway_adapter.cli.values import duration, duration_text, http_url, size, size_text, without_secrets

UNITS_MS = (1, 1_000, 60_000, 3_600_000, 86_400_000)


@given(st.builds(lambda number, unit_ms: number * unit_ms, st.integers(0, 36_500), st.sampled_from(UNITS_MS)))
def test_a_duration_shown_reads_the_same(ms: int) -> None:
    """K2: what the help shows as a default means that default."""
    assert duration(duration_text(ms)) == ms


@given(st.integers(0, 10**14))
def test_a_size_shown_reads_the_same(count: int) -> None:
    """K2: what the help shows as a default means that default."""
    assert size(size_text(count)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1024", 1_024),
        ("512b", 512),
        ("10MB", 10_000_000),
        ("10 mb", 10_000_000),
        ("4MiB", 4_194_304),
        ("1GB", 10**9),
    ],
)
def test_sizes(text: str, count: int) -> None:
    """J9: MB are millions, MiB are powers of two, in any case of letters."""
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "1.5MB", "-1", "10 M B", "1TB", "\u0661"])
def test_no_sizes(text: str) -> None:
    """J9: anything else is refused instead of guessed."""
    with pytest.raises(typer.BadParameter):
        size(text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:pw@localhost/0", "redis://***@localhost/0"),
        ("redis://user:p@ss:w/rd@localhost/0", "redis://***@localhost/0"),
        ("rediss://localhost/0?password=pw&db=1", "rediss://localhost/0?***"),
        ("unix://pw@/run/redis.sock?db=1", "unix://***@/run/redis.sock?***"),
        ("https://user:pw@models.test/v1", "https://***@models.test/v1"),
        ("user:pw@host", "***@host"),
        ("redis://redis@redis/0", "redis://***@redis/0"),
        ("embedded://", "embedded://"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    """J8: neither user nor password nor query is printed."""
    assert without_secrets(url, url) == shown


def test_an_address_of_version_6_is_bracketed() -> None:
    """K2: the URL that is printed can be opened."""
    assert http_url("::1", 8080) == "http://[::1]:8080"
    assert http_url("127.0.0.1", 80) == "http://127.0.0.1:80"
