"""The fleet: replicas tell of themselves, and vanish from the list by leaving or by dying."""

from __future__ import annotations

import os
import socket

from coordinator import Coordinator, Settings
from coordinator.store.lane import Lane
from tests.coordinator.turns import Held, ask
from tests.support.waiting import until

LIST = "coord1:replicas"


def keys_of(coordinator):
    """The record of a replica."""
    return f"coord1:replica:{coordinator.settings.replica}"


async def test_a_replica_tells_of_itself(start, store_server):
    """K2: host, process, version, since when, how busy; on every replica, in order of their names."""
    one, other = await start(replica="b"), await start(replica="a")
    held = await Held.granted_to(one, ask())
    await until(lambda: store_server.cli("SCARD", LIST) == 2)
    await one._fleet._tell()
    views = await other.replicas()
    assert [view.id for view in views] == ["a", "b"]
    assert {(view.host, view.pid) for view in views} == {(socket.gethostname(), os.getpid())}
    assert [view.running for view in views] == [0, 1]
    for view in views:
        assert view.version
        assert 0 < view.started_ms <= view.seen_ms
    await held.end()


async def test_one_that_leaves_is_gone_at_once(start, store_server):
    """K2: nothing of it stays behind."""
    async with Coordinator.open(store_server.url, Settings(replica="leaving")):
        await until(lambda: store_server.cli("SISMEMBER", LIST, "leaving") == 1)
    assert store_server.cli("EXISTS", LIST, "coord1:replica:leaving") == 0


async def test_one_that_died_is_gone_soon(start, store_server):
    """B40: its record ends by itself; it is in the list until somebody looks."""
    coordinator = await start()
    await until(lambda: store_server.cli("PTTL", keys_of(coordinator)) > 0)
    assert store_server.cli("PTTL", keys_of(coordinator)) <= 20_000
    store_server.cli("SADD", LIST, "dead")
    assert [view.id for view in await coordinator.replicas()] == [coordinator.settings.replica]
    assert store_server.cli("SISMEMBER", LIST, "dead") == 0


async def test_its_record_never_stays_without_an_end(start, store_server, monkeypatch):
    """K1: a replica that is killed between two commands leaves nothing for ever: they are sent as one."""
    coordinator = await start()
    await until(lambda: store_server.cli("EXISTS", keys_of(coordinator)) == 1)
    store_server.cli("DEL", keys_of(coordinator))
    batches: list[list[str]] = []
    exchange = Lane._exchange

    async def recorded(lane, batch):
        batches.append([str(command[0]) for call in batch for command in call.commands])
        await exchange(lane, batch)

    monkeypatch.setattr(Lane, "_exchange", recorded)
    await coordinator._fleet._tell()
    (sent,) = [names for names in batches if "PEXPIRE" in names]
    assert sent.index("HSET") < sent.index("PEXPIRE")


async def test_the_list_comes_back_after_a_total_loss(start, store_server):
    """J12: the next heartbeat writes down what was lost."""
    coordinator = await start()
    await until(lambda: store_server.cli("SCARD", LIST) == 1)
    store_server.flushall()
    assert await coordinator.replicas() == []
    await coordinator._fleet._tell()
    assert [view.id for view in await coordinator.replicas()] == [coordinator.settings.replica]


async def test_tools_do_not_count(store_server):
    """K2: whoever only asks is no replica."""
    async with Coordinator.open(store_server.url, Settings(), serving=False) as tool:
        assert await tool.replicas() == []
    assert store_server.cli("KEYS", "coord1:replica*") == []
