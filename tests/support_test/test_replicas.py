"""The replica processes of the kit, shown with a stand-in for the gateway."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import StartFailed
from tests.support.replicas import Replica, start_replicas

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_gateway.py")))


def ask(replica: Replica, timeout_s: float = 2.0) -> Any:
    """What the stand-in says about itself."""
    connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return json.load(connection.getresponse())


def test_a_replica_gets_its_flags_and_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses become flags, and no setting of the developer's shell reaches it."""
    monkeypatch.setenv("COORDINATOR_LEASE_TTL", "1h")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid")
    flags = ("--lease-ttl", "2s")
    with Replica(*flags, store="embedded://", upstream="http://u/v1", env={"NAME": "x"}, command=FAKE) as replica:
        told = ask(replica)
        assert told["pid"] == replica.pid
        expected = f"--host 127.0.0.1 --port {replica.port} --lease-ttl 2s --store embedded:// --upstream http://u/v1"
        assert told["flags"] == expected.split()
        assert told["env"]["NAME"] == "x"
        assert not {"COORDINATOR_LEASE_TTL", "HTTP_PROXY"} & set(told["env"])
    with pytest.raises(ProcessLookupError):
        os.kill(told["pid"], 0)


def test_a_replica_can_be_stopped_frozen_killed_and_restarted() -> None:
    """Each way of ending is told apart by its exit code, and a restart keeps the address."""
    with Replica(command=FAKE) as replica:
        url = replica.url
        replica.freeze()
        with pytest.raises(TimeoutError):
            ask(replica, timeout_s=0.1)
        replica.thaw()
        assert replica.stop() == -signal.SIGTERM
        assert not replica.alive
        replica.start()
        replica.kill()
        replica.restart()
        assert replica.url == url
        assert "GET /healthz" in replica.logs


def test_a_replica_that_will_not_stop_is_named_and_killed() -> None:
    """`stop` has a limit, after which the process is gone and the test fails with its output."""
    with Replica("--deaf", command=FAKE) as replica:
        with pytest.raises(AssertionError, match="GET /healthz"):
            replica.stop(timeout_s=0.1)
        assert not replica.alive


def test_a_failed_start_carries_the_output() -> None:
    """A replica that ends before it is healthy fails with what it printed."""
    with pytest.raises(StartFailed, match="no store at this address"), Replica("--fail", command=FAKE):
        pass


async def test_replicas_start_side_by_side() -> None:
    """Three replicas are three processes with three addresses."""
    async with start_replicas(3, command=FAKE) as replicas:
        assert len({ask(replica)["pid"] for replica in replicas}) == 3
        assert len({replica.url for replica in replicas}) == 3
    assert not any(replica.alive for replica in replicas)
