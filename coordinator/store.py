"""The connection to the store: calls made at the same time share a pipeline, every call has a deadline.

Nothing here waits longer than it says, nothing falls back to memory, and every failure to serve is `StoreUnavailable`.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import redis.asyncio as redis
from fakeredis import FakeAsyncRedis, FakeServer
from hiredis import pack_command
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from coordinator.errors import NotSafeYet, ScriptError, StoreFull, StoreUnavailable
from coordinator.keys import barrier_of
from coordinator.scripts import Script, Value
from coordinator.settings import Settings

SCHEMES = ("embedded", "redis", "rediss", "unix")

_FLUSHES = 2  # one pipeline fills while the other is under way; more would only split the calls up
_SHARE = 8  # fewer calls are not split between pipelines: sending costs more than it gains
_BATCH = 128  # calls a pipeline carries at most, so that none waits long behind the others

# Error replies by which a server says that it cannot serve now, or not us; anything else is a bug of ours.
_CANNOT_SERVE = (
    "LOADING", "MASTERDOWN", "READONLY", "OOM", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK",
    "BUSY", "NOAUTH", "WRONGPASS", "NOPERM", "UNBLOCKED", "EXECABORT", "max number of clients",
)  # fmt: skip

# The embedded stores of this process by URL: coordinators that name the same one share it, as they would a server.
_EMBEDDED: WeakValueDictionary[str, FakeServer] = WeakValueDictionary()


def check_url(url: str) -> None:
    """Raises ValueError, in words for a person, when a store URL makes no sense."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"store URL {url!r}: the scheme must be one of {', '.join(f'{s}://' for s in SCHEMES)}")
    if parts.scheme in ("redis", "rediss"):
        if not parts.hostname:
            raise ValueError(f"store URL {_shown(url)!r}: the host is missing, as in {parts.scheme}://localhost:6379/0")
        try:
            parts.port  # noqa: B018 - asking for it is the check
        except ValueError as error:
            raise ValueError(f"store URL {_shown(url)!r}: {error}") from None
        if not parts.path.strip("/").isdigit() and parts.path.strip("/"):
            raise ValueError(f"store URL {_shown(url)!r}: the database must be a number, as in /0")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("store URL 'unix://': the socket's path is missing, as in unix:///run/redis.sock")


def _shown(url: str) -> str:
    """The URL without its password."""
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url


class _Packing:
    """Mixed into the client's connections: packs commands in C, as its blocking connections do, ten times as fast."""

    def pack_commands(self, commands: Iterable[Iterable[Value]]) -> list[bytes]:
        # its stub speaks of a tuple of one
        return [pack_command(tuple(command)) for command in commands]  # type: ignore[arg-type]


def _connect(url: str, settings: Settings, timeout_s: float | None) -> tuple[redis.Redis, FakeServer | None]:
    if urlsplit(url).scheme == "embedded":
        server = _EMBEDDED.get(url) or _EMBEDDED.setdefault(url, FakeServer(version=(7,)))
        return FakeAsyncRedis(server=server), server
    options: dict[str, Any] = {
        # One silent repetition: every script of ours may be sent twice. More would outlast the caller's patience.
        "retry": Retry(NoBackoff(), 1),
        "retry_on_error": [],
        "socket_timeout": timeout_s,
        "socket_connect_timeout": settings.store_timeout_s,
        "protocol": 2,
        "client_name": settings.replica[:60],
    }
    client = redis.Redis.from_url(url, **options)
    pool = client.connection_pool
    pool.connection_class = type("PackingConnection", (_Packing, pool.connection_class), {})
    return client, None


class Store:
    """One replica's way to the store, for one event loop."""

    def __init__(self, url: str, settings: Settings) -> None:
        check_url(url)
        self.url = url
        self._settings = settings
        self._patience_s = settings.patience_ms / 1000
        self._client, self._server = _connect(url, settings, settings.store_timeout_s)
        self._pending: deque[_Call] = deque()
        self._flushes: set[asyncio.Task[None]] = set()
        self._wanted = False

    @property
    def embedded(self) -> bool:
        """Whether it lives inside this process, and forgets."""
        return self._server is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in list(self._flushes):
            with contextlib.suppress(Exception):
                await task
        await self._client.aclose()

    def listener(self) -> redis.Redis:
        """A client of its own for subscriptions, whose reads wait. The caller closes it."""
        return _connect(self.url, self._settings, None)[0]

    async def execute(self, *command: Value) -> Any:
        """One plain command. Replies are bytes, integers and lists, as the server sent them.

        Raises:
            StoreUnavailable: it could not be answered within `patience_ms`; it may still be carried out.
            ScriptError: the server refused it for what it was.
        """
        reply = await self._send(command)
        if isinstance(reply, Exception):
            raise _translated(reply)
        return reply

    async def run(
        self,
        script: Script,
        keys: Mapping[str, str | None],
        args: Mapping[str, Value],
        *,
        tail_keys: Sequence[str] = (),
        tail: Sequence[Value] = (),
        loosely: bool = False,
    ) -> list[Any]:
        """One script by its hash; loads it first where the server does not know it. Errors as for `execute`.

        Unless `loosely`, its answer comes once it is as safe as the durability class asks for; NotSafeYet says that it
        was carried out, and is not.
        """
        count, values = script.order(keys, args, tail_keys, tail)
        sha, text = (script.embedded_sha, script.embedded_text) if self.embedded else (script.sha, script.text)
        barrier = barrier_of(str(values[0])) if self._settings.durability != "primary" and not loosely else None
        reply = await self._send(("EVALSHA", sha, count, *values), barrier)
        if isinstance(reply, exceptions.NoScriptError):
            reply = await self._send(("EVAL", text, count, *values), barrier)
        if isinstance(reply, Exception):
            raise _translated(reply)
        return list(reply)

    async def _send(self, command: tuple[Value, ...], barrier: str | None = None) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._pending.append(_Call(command, future, barrier))
        if not self._wanted and len(self._flushes) < _FLUSHES:
            self._wanted = True
            loop.call_soon(self._start_flush)
        limit = loop.call_later(self._patience_s, _give_up, future)
        try:
            return await future
        finally:
            limit.cancel()

    def _start_flush(self) -> None:
        self._wanted = False
        # What has come together is split between the idle flushes: the store then works on one half while this process
        # works on the other, instead of each waiting for the other with all of it.
        idle = _FLUSHES - len(self._flushes)
        share = max(_SHARE, math.ceil(len(self._pending) / max(1, idle)))
        for _ in range(min(idle, math.ceil(len(self._pending) / share))):
            self._flushes.add(asyncio.get_running_loop().create_task(self._flush(share)))

    async def _flush(self, share: int) -> None:
        """Sends what is pending until nothing is. Runs in a task of its own, so no caller's cancellation can leave a
        reply unread on the connection."""
        try:
            await self._send_pending(share)
        finally:
            # In the step that found nothing pending: counted any longer it would keep what comes next from being sent.
            self._flushes.discard(asyncio.current_task())

    async def _send_pending(self, share: int) -> None:
        while self._pending:
            batch = self._next_batch(share)
            share = _BATCH
            try:
                replies = await self._exchange(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers, not to this task
                if isinstance(error, UnicodeEncodeError):
                    # Nothing was sent: a value is no text that can be written. That is its own caller's error.
                    others = [call for call in batch if _can_be_sent(call.command, call.future)]
                    if len(others) < len(batch):
                        self._pending.extendleft(reversed(others))
                        continue
                replies = [error] * len(batch)
            for call, reply in zip(batch, replies, strict=True):
                if not call.future.done():
                    call.future.set_result(reply)

    async def _exchange(self, batch: "list[_Call]") -> list[Any]:
        """Sends a batch over one connection, and waits there until what has to be safe is. The barrier makes that wait
        mean something also when the scripts wrote nothing this time: it covers all that the connection wrote before."""
        barrier = next((call.barrier for call in batch if call.barrier), None)
        async with self._client.pipeline(transaction=False) as pipeline:
            for call in batch:
                pipeline.execute_command(*call.command)
            if barrier:
                pipeline.execute_command("SET", barrier, "1")
                pipeline.execute_command(*self._waiting())
            replies = await pipeline.execute(raise_on_error=False)
        if not barrier:
            return list(replies)
        *told, _, reached = replies
        if self._is_safe(reached):
            return told
        short = NotSafeYet("carried out, but not yet as safe as it has to be")
        return [
            short if call.barrier and not isinstance(reply, Exception) else reply
            for call, reply in zip(batch, told, strict=True)
        ]

    def _waiting(self) -> tuple[Value, ...]:
        settings = self._settings
        if settings.durability == "fsynced":
            return "WAITAOF", 1, settings.safe_replicas, settings.durability_timeout_ms
        return "WAIT", settings.safe_replicas, settings.durability_timeout_ms

    def _is_safe(self, reached: Any) -> bool:
        if self._settings.durability == "fsynced":
            return isinstance(reached, list) and reached[0] >= 1 and reached[1] >= self._settings.safe_replicas
        return isinstance(reached, int) and reached >= self._settings.safe_replicas

    async def check_durability(self) -> None:
        """Raises ValueError when the server cannot do what the durability class asks for; StoreUnavailable while it
        cannot be asked."""
        durability = self._settings.durability
        if durability == "primary":
            return
        if self.embedded:
            raise ValueError(f"durability {durability}: the embedded store keeps nothing")
        reply = await self._send(("WAITAOF", 1, 0, 1) if durability == "fsynced" else ("WAIT", 0, 1))
        if isinstance(reply, exceptions.ResponseError) and isinstance(_translated(reply), ScriptError):
            raise ValueError(f"durability {durability}: the server cannot do that: {reply}")
        if isinstance(reply, Exception):
            raise _translated(reply)

    def _next_batch(self, most: int) -> "list[_Call]":
        batch: list[_Call] = []
        while self._pending and len(batch) < min(most, _BATCH):
            call = self._pending.popleft()
            if not call.future.done():  # else its caller has given up: never sent, so never carried out
                batch.append(call)
        return batch


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A command on its way; with a barrier its answer has to be safe."""

    command: tuple[Value, ...]
    future: "asyncio.Future[Any]"
    barrier: str | None


def _can_be_sent(command: tuple[Value, ...], future: "asyncio.Future[Any]") -> bool:
    """Whether the command can be written at all; else its caller is told."""
    try:
        pack_command(command)  # type: ignore[arg-type]  # its stub speaks of a tuple of one
    except UnicodeEncodeError as error:
        if not future.done():
            future.set_result(error)
        return False
    return True


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(StoreUnavailable("the store did not answer in time"))


def _translated(error: Exception) -> Exception:
    """The error of this library for one of the client's."""
    if isinstance(error, StoreUnavailable):
        return error
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError)):
        return StoreUnavailable("the store cannot be reached")
    if isinstance(error, exceptions.OutOfMemoryError):
        return StoreFull("the store is full")
    if isinstance(error, (exceptions.ReadOnlyError, exceptions.NoPermissionError)):
        return StoreUnavailable(f"the store cannot serve: {type(error).__name__}")
    if isinstance(error, exceptions.ResponseError):
        text = str(error)
        if text.startswith(_CANNOT_SERVE):
            return StoreUnavailable(f"the store cannot serve: {text.split(' ', 1)[0]}")
        return ScriptError(text)
    if isinstance(error, exceptions.RedisError):
        return StoreUnavailable(f"the store cannot serve: {type(error).__name__}")
    return error


class StoreClock:
    """An estimate of the store's clock, from the times that its replies carry; never later than the real one."""

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    @property
    def known(self) -> bool:
        """Whether a reply has told the time yet."""
        return self._offset_ms is not None

    def observe(self, store_ms: int, received: float | None = None) -> None:
        """Takes over a reply's time. The reply was on its way for a while, so the store is at least this far."""
        self._offset_ms = store_ms - (received if received is not None else monotonic()) * 1000

    def at(self, moment: float) -> int:
        """The store's clock in ms at a moment of `time.monotonic()`."""
        if self._offset_ms is None:
            raise RuntimeError("the store's clock is not known yet")
        return int(moment * 1000 + self._offset_ms)

    def now(self) -> int:
        """The store's clock now, in ms."""
        return self.at(monotonic())
