"""The processes around what is measured: `python -m benchmarks.services model PORT`, `... proxy PORT UPSTREAM`."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.proxy import serve_proxy
from benchmarks.wire import serve_model
from tests.support.process import LOCALHOST, ChildProcess, StartFailed
from tests.support.replicas import Replica

_ROOT = str(Path(__file__).parents[1])
_START_S = 10.0


class Service(ChildProcess):
    """One of the two, in a process of its own: ready once it takes connections."""

    def __init__(self, name: str, *arguments: str) -> None:
        super().__init__()
        self._name = name
        self._arguments = arguments

    @property
    def url(self) -> str:
        """`http://host:port`, without a trailing slash."""
        return f"http://{LOCALHOST}:{self.port}"

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "benchmarks.services", self._name, str(self.port), *self._arguments]

    def _environment(self) -> Mapping[str, str]:
        return os.environ | {"PYTHONPATH": _ROOT}

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._takes_connections():
            if not self.alive or time.monotonic() > deadline:
                raise StartFailed(f"{self._name} did not start, it printed:\n{self.logs}")
            time.sleep(0.02)

    def _takes_connections(self) -> bool:
        try:
            socket.create_connection((LOCALHOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True


def gateway(store: str, upstream: str) -> Replica:
    """A replica of the gateway, found also where the project is not installed."""
    return Replica(store=store, upstream=f"{upstream}/v1", env={"PYTHONPATH": _ROOT})


def cpu_seconds(process: ChildProcess) -> float:
    """Processor time that the process has used; 0 where the system does not tell it this way."""
    stat = Path(f"/proc/{process.pid}/stat")
    if not stat.exists():
        return 0
    user, system = stat.read_text("ascii").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["model", port]:
            asyncio.run(serve_model(int(port)))
        case ["proxy", port, upstream]:
            serve_proxy(int(port), upstream)
        case _:
            sys.exit(__doc__)
