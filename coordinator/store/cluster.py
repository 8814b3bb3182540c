"""A cluster: which of its servers owns a slot, found out and kept up to date.

The client library has a cluster client. It sends the calls of all slots together and lets all of them wait for the
slowest server, or fail with the one that is down; here each server has a lane of its own. What it knows of redirections
stays on the call that met it.
"""

import asyncio
import bisect
import contextlib
import random
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import redis.asyncio as redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError
from redis.exceptions import ConnectionError as Unreachable

from coordinator.store.address import Endpoint
from coordinator.store.connections import Connections, introduction
from coordinator.store.durability import Durability
from coordinator.store.failures import Failure
from coordinator.store.lane import Lane
from coordinator.store.lineage import Descent, Lineage
from coordinator.store.servers import Servers

_TOGETHER = 3  # servers asked at the same time: one that is frozen does not hold up the others' answers
_AGAIN_S = 0.1  # between two surveys: failovers take longer, and no server is to be flooded with questions

_SLOTS = 16_384

Row = tuple[int, int, list[Endpoint]]
"""First and last slot, their owner, and behind it its replicas."""


class Cluster(Servers):
    """A lane for each primary, and a map of slots that is made anew when it proves wrong."""

    def __init__(self, connections: Connections, lineage: Lineage, durability: Durability) -> None:
        self._connections = connections
        self._lineage = lineage
        self._durability = durability
        self._lanes: dict[Endpoint, Lane] = {}  # few: the addresses that primaries ever had
        self._rows: list[Row] = []
        self._moved: dict[int, Endpoint] = {}  # newer than the rows
        self._first: set[Endpoint] = set()
        self._survey: asyncio.Task[None] | None = None
        self._surveyed = -_AGAIN_S

    def lane(self, key: str | None) -> Lane | None:
        if not self._rows:
            return None
        owner = random.choice(self._rows)[2][0] if key is None else self._owner(key_slot(key.encode()))  # noqa: S311
        return self._lane(owner) if owner else None

    async def find(self, key: str | None) -> Lane:
        await self._look()
        lane = self.lane(key)
        if lane is None:
            raise ClusterDownError("Hash slot not served", status_code="CLUSTERDOWN")
        return lane

    async def all(self) -> Mapping[str, Lane]:
        if not self._rows:
            await self._look()
        return {_name(owner): self._lane(owner) for owner in sorted(self._owners())}

    async def recover(self, lane: Lane | None, failure: Failure, error: Exception) -> Lane | None:
        if isinstance(error, MovedError):
            self._moved[error.slot_id] = self._named(error, lane)
            self._look_later()
        elif isinstance(error, AskError):
            return self._lane(self._named(error, lane))
        elif failure.unreachable:
            with contextlib.suppress(RedisError, OSError):
                await self._look()
        return None

    def listener(self) -> redis.Redis:
        # Messages reach the subscribers of all servers, so any will do; another one when this one is lost.
        endpoint = random.choice([*self._owners()] or self._connections.address.endpoints)  # noqa: S311
        return redis.Redis.from_pool(self._connections.pool(endpoint, None, waits=True))

    async def aclose(self) -> None:
        if self._survey:
            self._survey.cancel()
            with contextlib.suppress(BaseException):
                await self._survey
        await asyncio.gather(*(lane.aclose() for lane in self._lanes.values()))

    def _owners(self) -> set[Endpoint]:
        return {owner for _, _, (owner, *_) in self._rows}

    def _owner(self, slot: int) -> Endpoint | None:
        if slot in self._moved:
            return self._moved[slot]
        at = bisect.bisect_right(self._rows, slot, key=lambda row: row[0]) - 1
        return self._rows[at][2][0] if at >= 0 and slot <= self._rows[at][1] else None

    def _lane(self, endpoint: Endpoint) -> Lane:
        lane = self._lanes.get(endpoint)
        if lane is None:
            # The owners in the first map are who they are; whoever comes later has taken over from one of them.
            successor = endpoint not in self._first

            def observe(descent: Descent) -> None:
                self._lineage.observe(_name(endpoint), descent, successor=successor)

            introduce = introduction(observe, self._connections.timeout_s, primary=False)
            pool = self._connections.pool(endpoint, introduce)
            lane = self._lanes[endpoint] = Lane(pool, self._lineage, self._durability)
        return lane

    def _named(self, error: AskError, lane: Lane | None) -> Endpoint:
        """Where a redirection leads. A server that does not know its own address leaves the host out: it is the one
        that was asked."""
        asked = next((endpoint for endpoint, each in self._lanes.items() if each is lane), ("", 0))
        return error.host or asked[0], error.port

    async def _look(self) -> None:
        """Makes the map anew; all who ask meanwhile wait for the same survey."""
        self._look_later()
        if self._survey:
            await asyncio.shield(self._survey)

    def _look_later(self) -> None:
        if self._survey is None or self._survey.done():
            self._survey = asyncio.create_task(self._make_map(), name="cluster-map")
            self._survey.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _make_map(self) -> None:
        await asyncio.sleep(max(0.0, self._surveyed + _AGAIN_S - monotonic()))
        try:
            self._rows = sorted(await self._ask_around())
        finally:
            self._surveyed = monotonic()
        self._moved.clear()
        owners = self._owners()
        self._first = self._first or owners
        for endpoint in self._lanes.keys() - owners:
            await self._lanes[endpoint].leave()

    async def _ask_around(self) -> list[Row]:
        known = [*{server for _, _, servers in self._rows for server in servers}]
        random.shuffle(known)
        # What the URL names comes last, and always: all the others may have been replaced meanwhile.
        endpoints = [*dict.fromkeys([*known, *self._connections.address.endpoints])]
        widest: list[Row] = []
        failed: Exception = Unreachable("no server of the cluster can be reached")
        for start in range(0, len(endpoints), _TOGETHER):
            asked = [asyncio.create_task(self._ask(endpoint)) for endpoint in endpoints[start : start + _TOGETHER]]
            try:
                for answer in asyncio.as_completed(asked):
                    try:
                        rows = await answer
                    except (RedisError, OSError) as error:
                        failed = error
                        continue
                    widest = max(widest, rows, key=_width)
                    if _width(widest) == _SLOTS:
                        return widest
            finally:
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
        if not widest:
            raise failed
        return widest

    async def _ask(self, endpoint: Endpoint) -> list[Row]:
        connection = self._connections.pool(endpoint, None).make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(self._connections.timeout_s):
                await connection.connect()
                await connection.send_command("CLUSTER", "SLOTS")
                return [_row(row, endpoint) for row in await connection.read_response()]
        finally:
            await connection.disconnect(nowait=True)


def _row(reply: list[Any], asked: Endpoint) -> Row:
    first, last, *servers = reply
    return first, last, [((host or b"").decode() or asked[0], port) for host, port, *_ in servers]


def _width(rows: Sequence[Row]) -> int:
    """How many slots have an owner."""
    return sum(last - first + 1 for first, last, _ in rows)


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint[0]}:{endpoint[1]}"
