"""The connection to the store: every call has a deadline, and is made again as long as a server is in transition.

Nothing here waits longer than it says, nothing falls back to memory, and every failure to serve is `StoreUnavailable`.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Self

import redis.asyncio as redis
from redis.exceptions import NoScriptError, RedisError

from coordinator.errors import ScriptError, StoreUnavailable
from coordinator.keys import barrier_of
from coordinator.scripts import Script, Value
from coordinator.settings import Settings
from coordinator.store.address import StoreAddress
from coordinator.store.clock import StoreClock
from coordinator.store.cluster import Cluster
from coordinator.store.connections import Connections
from coordinator.store.durability import Durability
from coordinator.store.failures import Failure, failure_of
from coordinator.store.lane import Call, Command, Lane
from coordinator.store.lineage import Lineage
from coordinator.store.servers import Embedded, Sentinels, Servers, Single

# Before a call is made again: at once, since a connection that was idle may have been closed long ago; then in time to
# see a restart or a failover end, without flooding a server that is about to serve.
_PAUSES_S = (0.0, 0.02, 0.05, 0.1, 0.2)
_AT_ONCE = 3  # redirections followed without a pause: more of them, and the servers do not agree yet

_KEYLESS = frozenset({"PING", "TIME", "PUBLISH", "INFO", "CONFIG", "CLUSTER", "SCRIPT", "WAIT", "WAITAOF"})
_ASKING: Command = ("ASKING",)

Ready = Callable[[], Awaitable[None]]


class Store:
    """One replica's way to the store, for one event loop.

    `lineage` is shared by all the stores that a replica opens, so that a change of servers is noticed once.
    """

    def __init__(
        self, url: str, settings: Settings, lineage: Lineage | None = None, *, patience_s: float | None = None
    ) -> None:
        address = StoreAddress.parse(url)
        self.url = url
        self.embedded = address.kind == "embedded"
        """Whether it lives inside this process, and forgets."""
        self._patience_s = settings.patience_ms / 1000 if patience_s is None else patience_s
        self._lineage = lineage or Lineage()
        self._durability = Durability(settings)
        connections = Connections(address, settings, min(settings.store_timeout_s, self._patience_s))
        self._servers = _servers(connections, self._lineage, self._durability)

    async def __aenter__(self) -> Self:
        await self._servers.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._servers.aclose()

    @property
    def changes(self) -> int:
        """How often the store turned out to be another server than before, or the same one restarted."""
        return self._lineage.changes

    def clock(self, key: str) -> StoreClock:
        """The clock of the server that has the key; each server of a cluster has its own."""
        lane = self._servers.lane(key)
        return lane.clock if lane else StoreClock()

    def listener(self) -> redis.Redis:
        """A client of its own for subscriptions, whose reads wait. The caller closes it."""
        return self._servers.listener()

    async def execute(self, *command: Value, at: str | None = None, patience_s: float | None = None) -> Any:
        """One plain command. Replies are bytes, integers and lists, as the server sent them.

        `at`: the key whose server is asked, for a command without one; else any server is.

        Raises:
            StoreUnavailable: it could not be answered within `patience_s`; it may still be carried out.
            ScriptError: the server refused it for what it was.
        """
        if at is None and command[0] not in _KEYLESS:
            at = str(command[1])
        return _answer(await self._call(at, command, monotonic() + (patience_s or self._patience_s)))

    async def everywhere(self, *command: Value) -> dict[str, Any]:
        """One plain command on each primary. Replies by server; its name is '' where there is but one."""
        try:
            async with asyncio.timeout(self._patience_s):
                lanes = await self._servers.all()
                replies = await asyncio.gather(*(_send(lane, (command,)) for lane in lanes.values()))
        except (RedisError, OSError) as error:  # the timeout is one of these
            raise failure_of(error).error from None
        return {name: _answer(reply) for name, reply in zip(lanes, replies, strict=True)}

    async def run(
        self,
        script: Script,
        keys: Mapping[str, str | None],
        args: Mapping[str, Value],
        *,
        tail_keys: Sequence[str] = (),
        tail: Sequence[Value] = (),
        loosely: bool = False,
        ready: Ready | None = None,
    ) -> list[Any]:
        """One script by its hash; loads it first where the server does not know it. Errors as for `execute`.

        Unless `loosely`, its answer comes once it is as safe as the durability class asks for; NotSafeYet says that it
        was carried out, and is not.

        `ready` is awaited before each time it is sent, and holds for that store only: should it turn out to be another
        one before the script is on its way, the script is not sent, and `ready` awaited again.
        """
        until = monotonic() + self._patience_s
        count, values = script.order(keys, args, tail_keys, tail)
        sha, text = (script.embedded_sha, script.embedded_text) if self.embedded else (script.sha, script.text)
        key = str(values[0])
        barrier = barrier_of(key) if self._durability.waits and not loosely else None
        reply = await self._call(key, ("EVALSHA", sha, count, *values), until, ready, barrier)
        if isinstance(reply, NoScriptError):
            reply = await self._call(key, ("EVAL", text, count, *values), until, ready, barrier)
        return list(_answer(reply))

    async def check_durability(self) -> None:
        """Raises ValueError when a server cannot do what the durability class asks for; StoreUnavailable while it
        cannot be asked."""
        if not self._durability.waits:
            return
        if self.embedded:
            raise ValueError(f"durability {self._durability.name}: the embedded store keeps nothing")
        try:
            await self.everywhere(*self._durability.probe)
        except ScriptError as error:
            raise ValueError(f"durability {self._durability.name}: the server cannot do that: {error}") from None

    async def _call(
        self, key: str | None, command: Command, until: float, ready: Ready | None = None, barrier: str | None = None
    ) -> Any:
        """The reply, or an error that trying again does not change."""
        failure: Failure | None = None
        lane: Lane | None = None
        redirected: Lane | None = None
        try:
            async with asyncio.timeout(until - monotonic()):
                for attempt in itertools.count():
                    decided_at = None
                    if ready:
                        await ready()
                        decided_at = self._lineage.changes
                    try:
                        lane = redirected or self._servers.lane(key) or await self._servers.find(key)
                    except (RedisError, OSError) as error:
                        reply: Any = error
                    else:
                        commands = (_ASKING, command) if redirected else (command,)
                        reply = await _send(lane, commands, decided_at, barrier)
                    if not isinstance(reply, Exception) or isinstance(reply, NoScriptError):
                        return reply
                    failure = failure_of(reply)
                    if not failure.passing:
                        return reply
                    await asyncio.sleep(_pause_s(attempt, failure))
                    redirected = await self._servers.recover(lane, failure, reply)
        except TimeoutError:
            raise failure.error if failure else StoreUnavailable("the store did not answer in time") from None


async def _send(
    lane: Lane, commands: tuple[Command, ...], decided_at: int | None = None, barrier: str | None = None
) -> Any:
    """The last command's reply, or the exception that kept it away."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    lane.send(Call(commands, future, decided_at, barrier))
    replies = await future
    return replies if isinstance(replies, Exception) else replies[-1]


def _pause_s(attempt: int, failure: Failure) -> float:
    at = attempt - _AT_ONCE if failure.at_once else attempt
    return _PAUSES_S[max(0, min(at, len(_PAUSES_S) - 1))]


def _answer(reply: Any) -> Any:
    """The reply; raises what it means if it is an error."""
    if isinstance(reply, Exception):
        raise failure_of(reply).error
    return reply


def _servers(connections: Connections, lineage: Lineage, durability: Durability) -> Servers:
    match connections.address.kind:
        case "embedded":
            return Embedded(connections.address, lineage, durability)
        case "single":
            return Single(connections, lineage, durability)
        case "sentinel":
            return Sentinels(connections, lineage, durability)
        case "cluster":
            return Cluster(connections, lineage, durability)
