"""What people type is what the checks run."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split()  # type: ignore[index]


def make(*arguments: str) -> str:
    """What `make` prints; neither a `make` that is running this nor the caller's settings have a say."""
    inherited = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PORT", "TESTS", "ARGS"}
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    done = subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_plain_make_lists_every_command() -> None:
    """K2: `make` alone does nothing but say what there is, one line a command."""
    listed = re.findall(r"^  make ([\w-]+) +\w", make(), re.MULTILINE)
    assert listed == TARGETS


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["run"], "session-coordinator serve --port 8080"),
        (["run", "PORT=9090", "ARGS=--store redis://localhost"], "serve --port 9090 --store redis://localhost"),
        (["test"], "-m pytest"),
        (["test", "TESTS=tests/lua", "ARGS=-x"], "-m pytest -x tests/lua"),
        (["test-faults"], "-m pytest -m slow -s --session-timeout 1800 tests/faults"),
        (["lint"], "-m mypy"),
        (["check"], "-m pytest"),
        (["bench"], "-m benchmarks"),
    ],
)
def test_a_command_does_what_it_says(arguments: list[str], command: str) -> None:
    """K2: each command runs the tool it names, with what was set."""
    assert command in make("--dry-run", *arguments)


def test_the_checks_run_the_same_commands() -> None:
    """K2: .ci/run is executable and holds nothing but what a person would type."""
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    lines = script.read_text("utf-8").splitlines()
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make")] == ["make lint", "make test"]
