"""Gateway replicas as users run them: a command in a process of its own, with only the environment it was given."""

from __future__ import annotations

import asyncio
import http.client
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.support.process import LOCALHOST, ChildProcess, StartFailed

SERVE = (sys.executable, "-m", "gateway_adapter.cli", "serve")
START_TIMEOUT_S = 15.0

# What a process needs to run at all; above all no COORDINATOR_* setting and no proxy of the developer's shell.
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")


class Replica(ChildProcess):
    """`with Replica(store=server.store_url, upstream=up.url) as gateway:` is ready when /healthz answers 200.

    `flags` are added to the command line, as in `Replica("--lease-ttl", "2s", store=...)`; `env` to the environment.
    `store` and `upstream` may be left out to take the product's defaults.
    """

    def __init__(
        self,
        *flags: str,
        store: str | None = None,
        upstream: str | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        command: Sequence[str] = SERVE,
    ) -> None:
        super().__init__(port=port)
        self._serve = command
        self._flags = [*flags]
        if store:
            self._flags += ["--store", store]
        if upstream:
            self._flags += ["--upstream", upstream]
        self._env = env or {}

    @property
    def url(self) -> str:
        """`http://host:port`, without a trailing slash."""
        return f"http://{LOCALHOST}:{self.port}"

    def _command(self) -> Sequence[str]:
        return [*self._serve, "--host", LOCALHOST, "--port", str(self.port), *self._flags]

    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return kept | {"PYTHONUNBUFFERED": "1", **self._env}

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_healthy():
            if not self.alive or time.monotonic() > deadline:
                raise StartFailed(f"the replica did not start, it printed:\n{self.logs}")
            time.sleep(0.02)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(LOCALHOST, self.port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@asynccontextmanager
async def start_replicas(
    count: int,
    *flags: str,
    store: str | None = None,
    upstream: str | None = None,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = SERVE,
) -> AsyncIterator[list[Replica]]:
    """`async with start_replicas(3, store=..., upstream=...) as (g1, g2, g3):` starts them side by side."""
    replicas = [Replica(*flags, store=store, upstream=upstream, env=env, command=command) for _ in range(count)]
    try:
        for replica in replicas:
            replica.spawn()
        await asyncio.gather(*(asyncio.to_thread(replica.wait_ready) for replica in replicas))
        yield replicas
    finally:
        for replica in replicas:
            replica.close()
