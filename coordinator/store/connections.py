"""Connections to servers: how they are made, and what is asked of a server before anything else."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as StoreTimeout

from coordinator.settings import Settings
from coordinator.store.address import Endpoint, StoreAddress
from coordinator.store.failures import NotPrimary
from coordinator.store.lineage import Descent

Introduce = Callable[[AbstractConnection], Awaitable[None]]


class Connections:
    """Makes what leads to the servers of an address: pools of connections, one for each server."""

    def __init__(self, address: StoreAddress, settings: Settings, timeout_s: float) -> None:
        self.address = address
        self._settings = settings
        self.timeout_s = timeout_s
        """How long connecting, sending, and each reply may take."""

    def pool(self, endpoint: Endpoint | None, introduce: Introduce | None, *, waits: bool = False) -> ConnectionPool:
        """For the server there, or the address's own socket. `waits`: its replies may be long in coming."""
        return ConnectionPool(**self._options(self.address.options, introduce, waits=waits), **_place(endpoint))

    def sentinel_pool(self, sentinel: Sentinel, introduce: Introduce | None, *, waits: bool = False) -> ConnectionPool:
        """For the primary, wherever the sentinels say it is when a connection is made."""
        options = self._options(self.address.options, introduce, waits=waits)
        tls = options.pop("connection_class", None) is not None
        return SentinelConnectionPool(self.address.service, sentinel, ssl=tls, **options)  # type: ignore[no-untyped-call]

    def sentinel(self) -> Sentinel:
        """The sentinels, who know which server is the primary."""
        options = self._options(self.address.sentinel_options, None)
        tls = options.pop("connection_class", None) is not None
        return Sentinel(self.address.endpoints, sentinel_kwargs={**options, "ssl": tls})  # type: ignore[no-untyped-call]

    def _options(
        self, of_url: Mapping[str, Any], introduce: Introduce | None, *, waits: bool = False
    ) -> dict[str, Any]:
        return {
            **of_url,
            "retry": Retry(NoBackoff(), 0),  # who calls knows how long to try, and where else
            "socket_timeout": None if waits else self.timeout_s,
            "socket_connect_timeout": self.timeout_s,
            "protocol": 2,
            "client_name": self._settings.replica[:60],
            "redis_connect_func": introduce,
        }


def introduction(observe: Callable[[Descent], None], timeout_s: float, *, primary: bool) -> Introduce:
    """What a new connection begins with: logging in, then asking who the server is.

    It takes `timeout_s` in all. `primary`: a server that only copies another one is refused, whatever led to it.
    """

    async def introduce(connection: AbstractConnection) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await connection.on_connect()
                facts = await _facts(connection)
        except TimeoutError:
            raise StoreTimeout("the server did not say in time who it is") from None
        if facts is None:
            return
        if primary and facts.get("role") != "master":
            raise NotPrimary("the server is a replica")
        observe(Descent(facts.get("run_id", ""), facts.get("master_replid", "")))

    return introduce


async def _facts(connection: AbstractConnection) -> dict[str, str] | None:
    """What the server says of itself; None for a user who may not ask: a change then goes by unnoticed."""
    await connection.send_command("INFO", "server", "replication", check_health=False)
    try:
        info: bytes = await connection.read_response()
    except ResponseError:
        return None
    pairs = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def _place(endpoint: Endpoint | None) -> dict[str, Any]:
    return {"host": endpoint[0], "port": endpoint[1]} if endpoint else {}
