"""Durability classes (J11) on a real primary with a real replica behind a line that can be cut without a trace."""

import asyncio
import contextlib
import time

import pytest

from coordinator import (
    CommitUnconfirmed,
    Coordinator,
    Explicit,
    Result,
    SessionNotFound,
    Settings,
    StoreUnavailable,
    TurnRequest,
)
from tests.support.servers import StoreServer
from tests.support.waiting import until

SETTINGS = Settings(lease_ms=5_000, durability="replicated", durability_timeout_ms=600, commit_patience_ms=1_000)


class Line:
    """A TCP line to a server that can swallow what it is given: both ends believe that it was sent."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._tasks: set[asyncio.Task] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.swallows = False
        self.port = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _accept(self, reader, writer):
        theirs = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, theirs[1]]
        for source, sink in ((reader, theirs[1]), (theirs[0], writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(source, sink)))

    async def _pass_on(self, source, sink):
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if not self.swallows:
                    sink.write(data)
                    await sink.drain()
            sink.close()


@pytest.fixture
async def pair():
    """A primary, the line to it, and a replica that follows through the line."""
    with StoreServer(config={"repl-diskless-sync-delay": "0", "shutdown-timeout": "0"}) as primary:
        async with Line(primary.port) as line:
            with StoreServer(config={"replicaof": f"127.0.0.1 {line.port}"}) as replica:
                await until(lambda: _has_acknowledged(primary), timeout_s=10)
                primary.flushall()
                yield primary, line, replica


def _has_acknowledged(primary) -> bool:
    primary.cli("SET", "follows", "1")
    return primary.cli("WAIT", 1, 200) == 1


@pytest.fixture
async def coordinator(pair):
    """A coordinator whose answers have to be on the replica."""
    async with Coordinator.open(pair[0].url, SETTINGS, serving=False) as opened:
        yield opened
        pair[1].swallows = False  # what is still to be taken back can be


async def turn(coordinator, session_id="s", key=None):
    """One finished turn; returns its session id."""
    request = TurnRequest(tenant="t", address=Explicit(session_id), route="test", idempotency_key=key, policy="reject")
    async with coordinator.turn(request) as held:
        if held.replay is None:
            await held.finish(Result(status=200, body=b"answer"), messages=[b"{}"])
        return held.session_id


async def test_an_answer_is_on_the_replica_when_it_is_told(pair, coordinator):
    """J11: with `replicated` a finished turn, its key and a deletion are on the replica once they are told."""
    _, _, replica = pair
    await turn(coordinator, key="k")
    assert replica.cli("HGET", next(iter(replica.cli("KEYS", "coord1:{t}:idempotency:*"))), "state") == b"completed"
    await coordinator.delete_session("t", "s")
    assert sum(replica.cli("SCARD", key) for key in replica.cli("KEYS", "coord1:{t}:retired:*")) == 1


async def test_an_admission_that_is_not_safe_is_taken_back(pair, coordinator):
    """J11: short of the replica nothing is admitted, within two seconds, and no grant stays behind."""
    primary, line, _ = pair
    line.swallows = True
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await turn(coordinator)
    assert time.monotonic() - started < 2
    await until(lambda: primary.cli("ZCARD", "coord1:{t}:running") == 0)


async def test_a_repeated_answer_is_no_safer_than_the_first(pair, coordinator):
    """J11: a replay writes nothing by itself; it is told only when the replica has what it rests on."""
    _, line, _ = pair
    await turn(coordinator, key="k")
    line.swallows = True
    with pytest.raises(StoreUnavailable):
        await turn(coordinator, key="k")


async def test_a_commit_that_is_not_safe_is_not_confirmed(pair, coordinator):
    """J11: at commit it is `CommitUnconfirmed`, never a false success."""
    _, line, _ = pair
    with pytest.raises(CommitUnconfirmed):
        async with coordinator.turn(TurnRequest(tenant="t", address=Explicit("s"), route="test")) as held:
            line.swallows = True
            await held.finish(Result(status=200, body=b"answer"))


async def test_a_deletion_that_is_not_safe_is_told_so(pair, coordinator):
    """J11: 503 at deletion means done here and not yet safe; the same request again answers finally."""
    _, line, _ = pair
    await turn(coordinator)
    line.swallows = True
    with pytest.raises(StoreUnavailable):
        await coordinator.delete_session("t", "s")
    with pytest.raises(StoreUnavailable):
        await coordinator.delete_session("t", "s")
    assert (await coordinator.sessions("t")) == []


@pytest.mark.parametrize(("durability", "survives"), [("replicated", True), ("primary", False)])
async def test_what_was_acknowledged_survives_a_failover(pair, durability, survives):
    """J11, J12: a deletion acknowledged under `replicated` is there after a failover; under `primary` it can be lost."""
    primary, line, replica = pair
    settings = Settings(lease_ms=5_000, durability=durability, durability_timeout_ms=600)
    async with Coordinator.open(primary.url, settings, serving=False) as before:
        await turn(before)
        await until(lambda: len(replica.cli("KEYS", "coord1:{t}:conversation:*")) == 1)
        line.swallows = not survives
        await before.delete_session("t", "s")
        primary.kill()
    replica.cli("REPLICAOF", "NO", "ONE")
    async with Coordinator.open(replica.url, Settings(lease_ms=5_000), serving=False) as after:
        if survives:
            with pytest.raises(SessionNotFound):
                await turn(after)
        else:
            assert await turn(after) == "s"


async def test_a_server_that_cannot_is_refused_at_start():
    """J11: `fsynced` without an AOF, and anything but `primary` on the embedded store, are told at start, in words."""
    settings = Settings(durability="fsynced")
    with StoreServer() as server:
        with pytest.raises(ValueError, match="durability fsynced"):
            async with Coordinator.open(server.url, settings, serving=False):
                pass
    with pytest.raises(ValueError, match="embedded"):
        async with Coordinator.open("embedded://durable", settings, serving=False):
            pass


async def test_fsynced_answers_are_on_disk():
    """J11: with `fsynced` a deletion is still there after the server was killed and came back from its file."""
    settings = Settings(lease_ms=5_000, durability="fsynced", durability_timeout_ms=500)
    with StoreServer(aof=True, config={"appendfsync": "always"}) as server:
        async with Coordinator.open(server.url, settings, serving=False) as coordinator:
            await turn(coordinator)
            await coordinator.delete_session("t", "s")
        server.kill()
        server.restart()
        async with Coordinator.open(server.url, settings, serving=False) as coordinator:
            with pytest.raises(SessionNotFound):
                await turn(coordinator)
