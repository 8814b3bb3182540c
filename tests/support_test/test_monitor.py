"""The key watcher of the kit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.monitor import Monitor
from tests.support.servers import StoreServer


@pytest.fixture
def client(store_server: StoreServer) -> Iterator[redis.Redis]:
    """A plain client of the shared server."""
    with redis.Redis.from_url(store_server.url) as client:
        yield client


def test_declared_keys_are_no_violation(store_server: StoreServer, client: redis.Redis) -> None:
    """Keys of any bytes pass when declared; channels, values and commands without keys are not keys."""
    odd = b'{t}"\\\n\x00\xff 1'
    source = """redis.call('SET', KEYS[1], ARGV[1]) redis.call('PUBLISH', 'channel', 'x') redis.call('TIME')
                redis.call('DEL', KEYS[1], KEYS[2]) return redis.call('EXISTS', KEYS[2])"""
    sha = client.script_load(source)
    with Monitor(store_server) as monitor:
        client.evalsha(sha, 2, odd, "{t}2", "value")
        client.set("outside", "a script")
        assert monitor.violations() == []
        (call,) = monitor.calls
    assert (call.script, call.keys) == (sha.encode(), [odd, b"{t}2"])
    assert [command[0] for command in call.commands] == [b"SET", b"PUBLISH", b"TIME", b"DEL", b"EXISTS"]


@pytest.mark.parametrize(
    "command",
    [
        "'SET', 'other', '1'",
        "'DEL', KEYS[1], 'other'",
        "'UNLINK', KEYS[1], 'other'",
        "'EXISTS', KEYS[1], 'other'",
        "'ZUNIONSTORE', KEYS[1], 1, 'other'",
        "'XREAD', 'STREAMS', 'other', '0'",
        "'RENAME', 'other', KEYS[1]",
    ],
)
def test_an_undeclared_key_is_found(store_server: StoreServer, client: redis.Redis, command: str) -> None:
    """A key that is not in KEYS is reported wherever the command takes it, in a transaction too."""
    with Monitor(store_server) as monitor, client.pipeline() as pipeline:
        pipeline.eval("return 1", 1, "other")  # declared by another call: does not count for the next one
        pipeline.eval(f"return redis.pcall({command})", 1, "key")
        pipeline.execute(raise_on_error=False)
    (violation,) = monitor.violations()
    assert "touches b'other'" in violation


def test_keys_of_two_slots_are_found(store_server: StoreServer, client: redis.Redis) -> None:
    """What a cluster would refuse is reported on a single server."""
    with Monitor(store_server) as monitor:
        client.eval("return 1", 2, "{a}", "{b}")
    assert "several slots" in monitor.violations()[0]


def test_a_watched_server_may_ask_for_a_password() -> None:
    """The watcher logs in like everybody else."""
    with StoreServer(password="pass") as server, Monitor(server) as monitor:
        server.cli("EVAL", "return redis.call('GET', 'k')", 0)
        assert len(monitor.violations()) == 1
