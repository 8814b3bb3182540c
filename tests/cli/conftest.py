"""The command line, called in the test's own process or started as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from gateway_adapter.cli import main
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
