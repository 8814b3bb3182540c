"""Which keys do scripts really touch? MONITOR tells, and the server itself says which arguments are keys."""

from __future__ import annotations

import re
import socket
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import redis
from redis.crc import key_slot

from tests.support.process import LOCALHOST
from tests.support.servers import REPLY_TIMEOUT_S, StoreServer

_LINE = re.compile(rb"\+\d+\.\d+ \[\d+ (\S+)\] (.*)\r\n\Z", re.DOTALL)
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}
_SCRIPT_CALLS = {b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO", b"FCALL", b"FCALL_RO"}


@dataclass(frozen=True)
class ScriptCall:
    """One run of a script: its hash (or source), the keys it declared, and the commands it ran."""

    script: bytes
    keys: list[bytes]
    commands: list[list[bytes]] = field(default_factory=list)


class Monitor:
    """`with Monitor(server) as monitor:` watches every script run by anybody until the block ends.

    `calls` and `violations()` first wait until everything sent before them has been seen.
    """

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self._calls: list[ScriptCall] = []
        self._socket: socket.socket | None = None
        self._keys_of: dict[tuple[bytes, ...], list[bytes]] = {}

    def __enter__(self) -> Self:
        self._socket = socket.create_connection((LOCALHOST, self._server.port), timeout=REPLY_TIMEOUT_S)
        self._stream = self._socket.makefile("rb")
        if self._server.password:
            self._socket.sendall(b"AUTH %s\r\n" % self._server.password.encode())
            assert self._stream.readline() == b"+OK\r\n"
        self._socket.sendall(b"MONITOR\r\n")
        assert self._stream.readline() == b"+OK\r\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._socket is not None
        try:
            if error is None:
                self._catch_up()
        finally:
            self._stream.close()
            self._socket.close()
            self._socket = None

    @property
    def calls(self) -> list[ScriptCall]:
        """Every script run seen so far, oldest first."""
        self._catch_up()
        return self._calls

    def violations(self) -> list[str]:
        """What would break in a cluster: keys touched without being declared, keys declared over several slots."""
        found = []
        for call in self.calls:
            if len({key_slot(key) for key in call.keys}) > 1:
                found.append(f"script {_name(call)} declares keys of several slots: {call.keys}")
            for command in call.commands:
                found += [
                    f"script {_name(call)} touches {key!r} in {command[0].decode()}, declared: {call.keys}"
                    for key in self._touched(command)
                    if key not in call.keys
                ]
        return found

    def _touched(self, command: list[bytes]) -> list[bytes]:
        """The keys among the arguments, by the server's own table; a channel is none."""
        if (known := self._keys_of.get(tuple(command))) is not None:
            return known
        try:
            keys: list[bytes] = self._server.cli("COMMAND", "GETKEYS", *command)
        except redis.ResponseError:  # a command without keys, or not a command at all
            keys = []
        self._keys_of[tuple(command)] = keys
        return keys

    def _catch_up(self) -> None:
        """Read until a marker that went in after everything else comes out; nothing to do once the block ended."""
        if self._socket is None:
            return
        marker = uuid.uuid4().hex.encode()
        self._server.cli("ECHO", marker)
        while line := self._stream.readline():
            parsed = _LINE.match(line)
            if parsed is None:
                continue
            command = [_unquote(argument) for argument in _ARGUMENT.findall(parsed[2])]
            if command[-1] == marker:
                return
            if parsed[1] == b"lua":
                # The server runs one script at a time and announces it before the commands inside it.
                self._calls[-1].commands.append(command)
            elif command[0].upper() in _SCRIPT_CALLS and len(command) > 2:
                self._calls.append(ScriptCall(command[1], command[3 : 3 + int(command[2])]))
        raise AssertionError("the server closed the MONITOR connection")


def _unquote(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]) if m[1] else _CONTROLS.get(m[2], m[2]), text)


def _name(call: ScriptCall) -> str:
    return call.script[:40].decode(errors="replace")
