"""Waiting for something to become true, with a limit, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

POLL_S = 0.002


async def until(
    condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 5.0, what: str = "the condition"
) -> None:
    """Return as soon as `condition()` (plain or awaitable) is true; AssertionError after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        met = condition()
        if inspect.isawaitable(met):
            met = await met
        if met:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s")
        await asyncio.sleep(POLL_S)


def until_sync(condition: Callable[[], bool], *, timeout_s: float = 5.0, what: str = "the condition") -> None:
    """As `until`, for code without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s")
        time.sleep(POLL_S)
