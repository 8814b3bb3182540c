"""Child processes of a test run: paused, ended and always reaped by their own pid."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LOCALHOST = "127.0.0.1"

# Below every system's range for outgoing connections: while a server is down between stop and restart, a client that
# keeps reconnecting can otherwise be given that very port as its own end, connect to itself, and block the restart.
_PORTS = range(20_000, 32_000)

START_ATTEMPTS = 4
"""How often a start is tried when somebody else took the chosen port between looking and binding."""


class StartFailed(Exception):
    """The process ended, or did not become ready in time; the message carries what it printed."""


def reserve_port() -> socket.socket:
    """A UDP socket on 127.0.0.1 whose number is free for TCP.

    While it is open nobody else who asks here gets that number, in this test run or another one: what answers on the
    port is then the process it was reserved for, down times included.
    """
    while True:
        address = (LOCALHOST, random.choice(_PORTS))
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(address)
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind(address)
        except OSError:
            claim.close()
            continue
        return claim


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody used a moment ago."""
    with reserve_port() as claim:
        return port_of(claim)


def port_of(bound: socket.socket) -> int:
    """The port number of a bound socket."""
    number: int = bound.getsockname()[1]
    return number


class ChildProcess(ABC):
    """One process with a port, a scratch directory and a log file.

    `with` starts it, and on the way out kills it: tests that care how it ends call `stop()` themselves.
    """

    def __init__(self, *, port: int | None = None) -> None:
        self._fixed = port is not None
        self._claim: socket.socket | None = None
        self.port = port or 0
        self._scratch = tempfile.TemporaryDirectory(prefix="session-coordinator-test-")
        self.directory = Path(self._scratch.name)
        self._log = self.directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The command line for `self.port`."""

    @abstractmethod
    def _wait_ready(self) -> None:
        """Return once it serves; StartFailed when it never will."""

    def _environment(self) -> Mapping[str, str] | None:
        """The whole environment of the child; None inherits ours."""
        return None

    def spawn(self) -> None:
        """Start the process without waiting for it; `wait_ready()` is the other half."""
        assert not self.alive, "already running"
        if not self.port:
            self._claim = reserve_port()
            self.port = port_of(self._claim)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        """Wait until it serves; a start that lost its port to somebody else is repeated on another one."""
        for attempt in range(START_ATTEMPTS):
            try:
                self._wait_ready()
                self._fixed = True  # from now on clients know it: a restart must get the same one
                return
            except StartFailed as error:
                self.kill()
                lost_port = "in use" in str(error) and not self._fixed
                if not lost_port or attempt == START_ATTEMPTS - 1:
                    raise
                self._log.unlink()
                self._give_up_port()
                self.spawn()

    def start(self) -> None:
        """Start it and wait until it serves. Raises StartFailed with its output."""
        self.spawn()
        self.wait_ready()

    @property
    def pid(self) -> int:
        """The process id of the running child."""
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended (a frozen one is alive)."""
        return self._process is not None and self._process.poll() is None

    @property
    def logs(self) -> str:
        """All it has printed so far, over restarts, both streams in order."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        """Send one signal to this process, if it is still there."""
        if self._process is not None:
            self._process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        self.signal(signal.SIGCONT)

    def stop(self, timeout_s: float = 10.0) -> int:
        """SIGTERM, then wait for the exit code; AssertionError (and SIGKILL) when it takes longer than `timeout_s`."""
        self.thaw()
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 10.0) -> int:
        """Reap a process that is on its way out and return its exit code (negative: the signal that ended it)."""
        if self._process is None:
            return 0
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logs = self.logs
            self.kill()
            raise AssertionError(f"still running after {timeout_s} s:\n{logs}") from None
        self._process = None
        return code

    def kill(self) -> None:
        """SIGKILL and reap; harmless when it has already ended."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop it if it runs, and start it again on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill it and remove its scratch directory."""
        self.kill()
        self._give_up_port()
        self._scratch.cleanup()

    def _give_up_port(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim, self.port = None, 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
