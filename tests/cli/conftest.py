"""The command line, called in the test's own process or started as a user would start it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator import Coordinator, Explicit, Result, Settings, Turn, TurnRequest
from gateway_adapter.cli import main
from gateway_adapter.settings import GatewaySettings
from tests.support.servers import StoreServer

COMMAND = (sys.executable, "-m", "gateway_adapter.cli")
_KEPT = ("PATH", "HOME", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with `--json`."""
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on stderr of a command that printed nothing else."""
        assert not self.out
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.rstrip("\n")


Run = Callable[..., Ran]
AskLater = Callable[..., Awaitable[Ran]]


@pytest.fixture(autouse=True)
def _no_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("COORDINATOR_"):
            monkeypatch.delenv(name)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("keys", "new", "acme", NAME="value")`: one command in this process, with these variables."""

    def run_here(*arguments: str, **variables: str) -> Ran:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = main(arguments)
        return Ran(code, *capsys.readouterr())

    return run_here


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySettings]:
    """The settings that `serve` would have served with; nothing is bound, logging stays the tests'."""
    found: list[GatewaySettings] = []

    async def serve(settings: GatewaySettings) -> None:
        found.append(settings)

    monkeypatch.setattr("gateway_adapter.app.serve", serve)
    monkeypatch.setattr("gateway_adapter.cli.logs.set_up", lambda level: None)
    return found


@pytest.fixture
def ask(run: Run, store_server: StoreServer) -> Run:
    """`run` for verbs that ask a store: the shared server."""

    def ask_server(*arguments: str, **variables: str) -> Ran:
        return run(*arguments, COORDINATOR_STORE=store_server.store_url, **variables)

    return ask_server


def start(*arguments: str, variables: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> Ran:
    """One command as a process of its own, with only these variables."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    done = subprocess.run(
        [*COMMAND, *arguments],
        env={**kept, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
async def fleet(store_server: StoreServer) -> AsyncIterator[Coordinator]:
    """A replica's coordinator on the shared store."""
    async with Coordinator.open(store_server.store_url, Settings(replica="replica-1"), serving=False) as coordinator:
        yield coordinator


@pytest.fixture
def ask_beside(ask: Run) -> AskLater:
    """`ask` while the test's own loop goes on: a command has its own. One at a time, awaited to its end."""

    async def ask_in_thread(*arguments: str, **variables: str) -> Ran:
        return await asyncio.to_thread(ask, *arguments, **variables)

    return ask_in_thread


def asking(session_id: str = "chat", tenant: str = "default", key: str | None = None) -> TurnRequest:
    """A request for a turn of a session."""
    return TurnRequest(tenant=tenant, address=Explicit(session_id), route="chat", idempotency_key=key)


async def answered(fleet: Coordinator, request: TurnRequest) -> Turn:
    """A turn that has run to its end."""
    async with fleet.turn(request) as turn:
        await turn.finish(Result(status=200, body=b'{"answer": 1}'))
    return turn


async def held(fleet: Coordinator, request: TurnRequest) -> tuple[Turn, asyncio.Task[None]]:
    """A turn that runs until it is told to stop, and the task that holds it: that one ends as the turn does."""
    granted: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with fleet.turn(request) as turn:
            granted.set_result(turn)
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    return await granted, holder
