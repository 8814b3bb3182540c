"""What every fault scenario shares: two sizes, a seed that repeats it, and an account of what was done."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.processes.fleet import Fleet
from tests.support.clients import Reply

SEED = "FAULTS_SEED"
"""Environment variable that repeats a run."""


def rounds(short: int, long: int, *, limit_s: int = 300) -> pytest.MarkDecorator:
    """The parameter `rounds` in two sizes: for every run, and for a long one (`-m slow`) of at most `limit_s`."""
    slow = [pytest.mark.slow, pytest.mark.timeout(limit_s)]
    return pytest.mark.parametrize(
        "rounds", [pytest.param(short, id="short"), pytest.param(long, id="long", marks=slow)]
    )


class Story:
    """Chance that can be repeated, and what was done, printed as it happens."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self._began = time.monotonic()
        self.tell(f"{name}: seed {seed}; {SEED}={seed} repeats it")

    def tell(self, text: str) -> None:
        """Prints one line; it is shown when the scenario fails, and always with `-s`."""
        sys.stdout.write(f"\n{time.monotonic() - self._began:7.2f} s  {text}")

    def flip(self) -> bool:
        """One of two, by chance."""
        return self.random.random() < 0.5


def seed_of_this_run() -> int:
    """The seed that was asked for, else a new one."""
    return int(os.environ.get(SEED) or random.SystemRandom().randrange(10**9))


async def texts(fleet: Fleet, session_id: str, *, at: int | None = None) -> list[str]:
    """The transcript's texts; empty for a session that does not exist."""
    reply = await fleet.request("GET", f"/api/sessions/{session_id}/messages", at=at)
    return [message["content"] for message in reply.json()["data"]] if reply.status == 200 else []


async def outcome(asking: asyncio.Task[Reply]) -> str:
    """How a request ended, in a word: `ok`, an error's code, or the connection's end. A stream's error is its last
    event."""
    try:
        reply = await asking
    except Exception as error:  # noqa: BLE001 - a replica that dies cuts its connections in many ways
        return type(error).__name__
    if reply.code is not None:
        return reply.code
    if reply.status != 200:
        return str(reply.status)
    last = reply.events()[-1:] if reply.headers["Content-Type"].startswith("text/event-stream") else []
    if last and last[0] != "[DONE]":
        body = reply.body.decode()
        return next((code for code in ENDINGS if code in body), "cut off")
    return "ok"


ENDINGS = (
    "lease_lost",
    "turn_cancelled",
    "unknown_execution",
    "gateway_draining",
    "commit_unconfirmed",
    "upstream_failed",
)
"""Codes with which a stream under way may end."""


def last_user_text(body: Mapping[str, Any]) -> str:
    """What an upstream call was asked last."""
    return str(body["messages"][-1]["content"])


def calls_with(fleet: Fleet, text: str) -> int:
    """How many upstream calls were about this text."""
    return sum(last_user_text(call.json()) == text for call in fleet.upstream.calls)


async def until_queued(fleet: Fleet, session_id: str, count: int, *, at: int) -> None:
    """Wait until so many wait for the session."""
    for _ in range(1_000):
        if (await fleet.session(session_id, at=at)).json()["queued"] == count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"no queue of {count} in {session_id}")


def counted(words: Sequence[str]) -> str:
    """How often each word came, as text."""
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words))) or "nothing"
