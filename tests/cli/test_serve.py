"""`serve` as a process: what it logs, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, start
from tests.support.process import LOCALHOST
from tests.support.replicas import Replica
from tests.support.servers import StoreServer

KEY = "sk-a-key-that-must-never-be-printed"


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server((LOCALHOST, 0)) as other:
        yield other.getsockname()[1]


def test_a_port_in_use_is_one_clear_line(taken_port: int) -> None:
    """K2: exit code 1, and the last line says which address cannot be had."""
    ran = start("serve", "--port", str(taken_port))
    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert last == f"session-coordinator: cannot listen on http://127.0.0.1:{taken_port}: Address already in use"
    assert "Traceback" not in ran.err


def test_a_replica_says_what_it_serves_where() -> None:
    """J8, K2: lines of JSON for machines, with the address, the store and the upstream without secrets, the tenants."""
    keys = {"COORDINATOR_API_KEYS": f"beta:{KEY},acme:{KEY}2", "COORDINATOR_UPSTREAM_API_KEY": f"{KEY}3"}
    with (
        StoreServer(password=f"{KEY}4") as store,
        Replica(store=store.url, upstream="http://127.0.0.1:9/v1", env=keys) as replica,
    ):
        assert replica.stop() == 0
        logged, url, port = replica.logs, replica.url, store.port
    assert KEY not in logged
    lines = [json.loads(line) for line in logged.splitlines()]
    assert all({"event", "level", "timestamp", "logger"} <= line.keys() for line in lines)
    told = lines[0]
    assert told["url"] == url
    assert told["store"] == f"redis://***@127.0.0.1:{port}/0"
    assert told["upstream"] == "http://127.0.0.1:9/v1"
    assert told["tenants"] == ["acme", "beta"]


def test_the_embedded_store_says_that_it_forgets() -> None:
    """J1: the default store is good for one process, and a warning says so."""
    with Replica() as replica:
        assert replica.stop() == 0
        warnings = [line for line in map(json.loads, replica.logs.splitlines()) if line["level"] == "warning"]
    assert len(warnings) == 1
    assert "forgets everything" in warnings[0]["event"]


def test_the_log_level_is_the_least_that_is_logged(taken_port: int) -> None:
    """K2: at `error` a start is silent, apart from why it failed."""
    assert len(start("serve", "--port", str(taken_port), "--log-level", "error").err.splitlines()) == 1


def test_on_a_terminal_the_log_is_for_people(taken_port: int) -> None:
    """K2: coloured text instead of JSON."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "serve", "--port", str(taken_port)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        assert process.wait(10) == 1
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "starting" in shown
    assert f"http://127.0.0.1:{taken_port}" in shown
    assert not any(line.startswith("{") for line in shown.splitlines())


def test_a_traceback_shows_no_values(tmp_path: Path) -> None:
    """J8: an error of ours is logged with its traceback, without the variables of the frames."""
    script = tmp_path / "failing.py"
    script.write_text(
        "import logging, sys, structlog\n"
        "from gateway_adapter.cli import logs\n"
        "def fail(secret):\n"
        "    raise RuntimeError('it failed')\n"
        "logs.set_up('info')\n"
        "for log in (structlog.get_logger('ours'), logging.getLogger('theirs')):\n"
        "    try:\n"
        "        fail(sys.argv[1])\n"
        "    except RuntimeError:\n"
        "        log.exception('caught')\n"
    )
    command = [COMMAND[0], str(script), KEY]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(root())}, capture_output=True, text=True, timeout=10, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["ours", "theirs"]
    assert all("RuntimeError: it failed" in line["exception"] for line in lines)
    assert KEY not in done.stderr


def root() -> Path:
    """The folder that holds the packages."""
    return Path(__file__).parents[2]
