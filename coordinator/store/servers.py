"""Which server a call goes to: the one there is, the one that the sentinels name, or the owner of the key's slot."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import redis.asyncio as redis
from fakeredis import FakeAsyncRedis, FakeServer

from coordinator.errors import StoreUnavailable
from coordinator.store.address import StoreAddress
from coordinator.store.connections import Connections, introduction
from coordinator.store.durability import Durability
from coordinator.store.failures import Failure
from coordinator.store.lane import Lane
from coordinator.store.lineage import Descent, Lineage

_LOOK_S = 1.0  # between questions to the sentinels whether the primary is still the same

# The embedded stores of this process by URL: coordinators that name the same one share it, as they would a server.
_EMBEDDED: WeakValueDictionary[str, FakeServer] = WeakValueDictionary()


class Servers(ABC):
    """The servers of one store, for one event loop. No call ever goes to a replica."""

    @abstractmethod
    def lane(self, key: str | None) -> Lane | None:
        """The way to the server that has the key, or to any for None; None when it has to be found first."""

    @abstractmethod
    async def find(self, key: str | None) -> Lane:
        """The same, found out. Raises what the client library raises when nobody can say."""

    @abstractmethod
    async def all(self) -> Mapping[str, Lane]:
        """The ways to all primaries, by name."""

    @abstractmethod
    def listener(self) -> redis.Redis:
        """A client of its own for subscriptions, whose reads wait. The caller closes it."""

    async def recover(self, lane: Lane | None, failure: Failure, error: Exception) -> Lane | None:
        """Does what makes it likelier that the call succeeds. Returns the lane where it is to be asked for once, with
        ASKING in front."""
        return None

    async def start(self) -> None:  # noqa: B027 - most have nothing of the kind
        """Begins what has to go on all the time."""

    @abstractmethod
    async def aclose(self) -> None:
        """Waits for what is under way, and closes all connections."""


class OneServer(Servers):
    """The same lane for every key."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def lane(self, key: str | None) -> Lane:
        return self._lane

    async def find(self, key: str | None) -> Lane:
        return self._lane

    async def all(self) -> Mapping[str, Lane]:
        return {"": self._lane}

    async def aclose(self) -> None:
        await self._lane.aclose()


class Embedded(OneServer):
    """An imitation of a server inside this process."""

    def __init__(self, address: StoreAddress, lineage: Lineage, durability: Durability) -> None:
        self._server = _EMBEDDED.get(address.url) or _EMBEDDED.setdefault(address.url, FakeServer(version=(7,)))
        self._client = FakeAsyncRedis(server=self._server)
        super().__init__(Lane(self._client.connection_pool, lineage, durability))

    def listener(self) -> redis.Redis:
        return FakeAsyncRedis(server=self._server)


class Single(OneServer):
    """One server with an address of its own."""

    def __init__(self, connections: Connections, lineage: Lineage, durability: Durability) -> None:
        self._connections = connections
        self._endpoint = connections.address.endpoints[0] if connections.address.endpoints else None

        def observe(descent: Descent) -> None:
            lineage.observe("the server", descent)

        introduce = introduction(observe, connections.timeout_s, primary=True)
        super().__init__(Lane(connections.pool(self._endpoint, introduce), lineage, durability))

    def listener(self) -> redis.Redis:
        return redis.Redis.from_pool(self._connections.pool(self._endpoint, None, waits=True))

    async def recover(self, lane: Lane | None, failure: Failure, error: Exception) -> Lane | None:
        if failure.code == "MOVED":
            raise StoreUnavailable("the store cannot serve: it is a cluster, whose URL begins with redis+cluster://")
        return None


class Sentinels(OneServer):
    """The primary that the sentinels name, whenever a connection is made."""

    def __init__(self, connections: Connections, lineage: Lineage, durability: Durability) -> None:
        self._connections = connections
        self._sentinel = connections.sentinel()

        def observe(descent: Descent) -> None:
            lineage.observe("the primary", descent)

        introduce = introduction(observe, connections.timeout_s, primary=True)
        self._pool = connections.sentinel_pool(self._sentinel, introduce)
        self._watch: asyncio.Task[None] | None = None
        super().__init__(Lane(self._pool, lineage, durability))

    def listener(self) -> redis.Redis:
        return redis.Redis.from_pool(self._connections.sentinel_pool(self._sentinel, None, waits=True))

    async def start(self) -> None:
        """Asks the sentinels again and again: a primary that they have replaced may go on answering for a while, cut
        off from them and from its replicas."""
        self._watch = asyncio.create_task(self._look(), name="sentinels")

    async def _look(self) -> None:
        known: Any = None
        while True:
            with contextlib.suppress(Exception):  # nobody to ask is no reason to leave a server that answers
                primary = await self._sentinel.discover_master(self._connections.address.service)
                if known not in (None, primary):
                    await self._lane.leave()
                known = primary
            await asyncio.sleep(_LOOK_S)

    async def aclose(self) -> None:
        if self._watch:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        await super().aclose()
        with contextlib.suppress(Exception):
            await self._sentinel.aclose()
