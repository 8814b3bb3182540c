"""One server's lane: calls made at the same time share a pipeline."""

import asyncio
import contextlib
import math
from collections import deque
from typing import Any

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.exceptions import ResponseError

from coordinator.errors import NotSafeYet
from coordinator.scripts import Value
from coordinator.store.clock import StoreClock
from coordinator.store.durability import Durability
from coordinator.store.failures import StoreChanged, is_stray
from coordinator.store.lineage import Lineage

Command = tuple[Value, ...]

_FLUSHES = 2  # one pipeline fills while the other is under way; more would only split the calls up
_SHARE = 8  # fewer calls are not split between pipelines: sending costs more than it gains
_BATCH = 128  # calls a pipeline carries at most, so that none waits long behind the others


class Call:
    """Commands that go out one behind the other on one connection, and the future of their replies."""

    __slots__ = ("barrier", "commands", "decided_at", "future")

    def __init__(
        self,
        commands: tuple[Command, ...],
        future: "asyncio.Future[Any]",
        decided_at: int | None = None,
        barrier: str | None = None,
    ) -> None:
        self.commands = commands
        self.future = future
        """Set to the replies, error replies as values, or to the exception that kept them away."""
        self.decided_at = decided_at
        """`Lineage.changes` when it was decided on: not sent to another store. None: to any."""
        self.barrier = barrier
        """The key that is written behind it when its answer has to be safe before it is told; else None."""

    def settle(self, outcome: Any) -> None:
        """Says how it went, unless its caller has given up."""
        if not self.future.done():
            self.future.set_result(outcome)


class Lane:
    """The way to one server, for one event loop. `clock` is that server's."""

    def __init__(self, pool: ConnectionPool, lineage: Lineage, durability: Durability) -> None:
        self.clock = StoreClock()
        self._pool = pool
        self._lineage = lineage
        self._durability = durability
        self._pending: deque[Call] = deque()
        self._flushes: set[asyncio.Task[None] | None] = set()
        self._wanted = False

    def send(self, call: Call) -> None:
        """Sends a call with the others that come together."""
        self._pending.append(call)
        if not self._wanted and len(self._flushes) < _FLUSHES:
            self._wanted = True
            asyncio.get_running_loop().call_soon(self._start_flush)

    async def leave(self) -> None:
        """Drops the connections: those in use when they are through with what they carry."""
        await self._pool.update_active_connections_for_reconnect()  # type: ignore[no-untyped-call]
        with contextlib.suppress(Exception):  # closing what is broken may fail; it is gone all the same
            await self._pool.disconnect(inuse_connections=False)

    async def aclose(self) -> None:
        """Waits for what is under way, then closes the connections."""
        for task in list(self._flushes):
            if task:
                with contextlib.suppress(Exception):
                    await task
        with contextlib.suppress(Exception):
            await self._pool.aclose()

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
            while self._pending:
                batch = self._next_batch(share)
                share = _BATCH
                try:
                    await self._exchange(batch)
                except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers, not to this task
                    for call in batch:
                        call.settle(error)
        finally:
            # In the step that found nothing pending: counted any longer it would keep what comes next from being sent.
            self._flushes.discard(asyncio.current_task())

    def _next_batch(self, most: int) -> list[Call]:
        batch: list[Call] = []
        while self._pending and len(batch) < min(most, _BATCH):
            call = self._pending.popleft()
            if not call.future.done():  # else its caller has given up: never sent, so never carried out
                batch.append(call)
        return batch

    async def _exchange(self, batch: list[Call]) -> None:
        packed = {call: data for call in batch if (data := _packed(call)) is not None}
        if not packed:
            return
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        stray = False
        try:
            # Making the connection may have shown another store than the one that a call was decided on for.
            batch = [call for call in packed if self._is_current(call)]
            barriers = [*dict.fromkeys(call.barrier for call in batch if call.barrier)]
            behind = self._durability.commands(barriers) if barriers else []
            await connection.send_packed_command([b"".join([*map(packed.__getitem__, batch), *map(_pack, behind)])])
            unsafe: list[tuple[Call, list[Any]]] = []
            for call in batch:
                replies = [await _reply(connection) for _ in call.commands]
                stray = stray or any(map(is_stray, replies))
                if call.barrier:
                    unsafe.append((call, replies))
                else:
                    call.settle(replies)
            reached = (
                self._durability.reached(barriers, [await _reply(connection) for _ in behind]) if behind else set()
            )
            for call, replies in unsafe:
                call.settle(replies if call.barrier in reached else [*map(_unsafe, replies)])
        finally:
            await self._pool.release(connection)
            if stray:
                await self.leave()

    def _is_current(self, call: Call) -> bool:
        if call.decided_at is None or call.decided_at == self._lineage.changes:
            return True
        call.settle(StoreChanged("the store changed while the call was on its way"))
        return False


def _pack(command: Command) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub speaks of a tuple of one
    return packed


def _packed(call: Call) -> bytes | None:
    """The call as it is sent. None for one that holds what is no proper text: that is its own caller's error."""
    try:
        return b"".join(map(_pack, call.commands))
    except UnicodeEncodeError as error:
        call.settle(error)
        return None


def _unsafe(reply: Any) -> Any:
    """An error is as it is; an answer is not told before it is safe."""
    return reply if isinstance(reply, Exception) else NotSafeYet("carried out, but not yet as safe as it has to be")


async def _reply(connection: Any) -> Any:
    """The next reply; an error reply is one too."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
