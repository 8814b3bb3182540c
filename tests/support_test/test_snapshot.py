"""The key space dump of the kit."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio

from tests.support import STORES
from tests.support.servers import StoreServer
from tests.support.snapshot import TIME, Entry, differences, snapshot

NOW_MS = 1_796_073_616_118


def fill(client: Any) -> None:
    """One key of each type, with bytes that are no text."""
    client.set("string", b"\xff\x00", px=60_000)
    client.hset("hash", mapping={"until_ms": NOW_MS, "state": "running"})
    client.sadd("set", "a", "b")
    client.zadd("zset", {"turn": NOW_MS, "other": 1.5})
    client.rpush("list", "a", "a")
    client.xadd("stream", {"data": "x"}, id="7-0")
    client.xadd("stream", {"data": "y"}, id=f"{NOW_MS}-3")


EXPECTED = {
    b"string": Entry("string", b"\xff\x00", True),
    b"hash": Entry("hash", {b"until_ms": b"%d" % NOW_MS, b"state": b"running"}, False),
    b"set": Entry("set", frozenset({b"a", b"b"}), False),
    b"zset": Entry("zset", {b"turn": float(NOW_MS), b"other": 1.5}, False),
    b"list": Entry("list", [b"a", b"a"], False),
    b"stream": Entry("stream", [(b"7-0", {b"data": b"x"}), (b"%d-3" % NOW_MS, {b"data": b"y"})], False),
}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("store", STORES)
async def test_a_dump_is_the_same_everywhere(request: pytest.FixtureRequest, store: str, protocol: int) -> None:
    """Single server, cluster (plain and cluster client) and imitation; both protocols; with and without asyncio."""
    clients: list[Any]
    if store == "embedded":
        fake = fakeredis.FakeServer()
        clients = [fakeredis.FakeRedis(server=fake), fakeredis.FakeAsyncRedis(server=fake)]
    else:
        server: StoreServer = request.getfixturevalue("store_server" if store == "real" else "cluster_server")
        where: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "protocol": protocol}
        clients = [redis.Redis(**where), redis.asyncio.Redis(**where)]
        if server.cluster:
            clients += [redis.RedisCluster(**where), redis.asyncio.RedisCluster(**where)]
    fill(clients[0])
    for client in clients:
        if isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
            assert await snapshot(client, ttl=True) == EXPECTED
            await client.aclose()
        else:
            assert snapshot(client, ttl=True) == EXPECTED
    for client in clients:
        if isinstance(client, redis.Redis | redis.RedisCluster):
            client.close()


def test_times_can_be_left_out(store_server: StoreServer) -> None:
    """`ignore_times` blanks scores, fields and entry ids that are times and nothing else; `match` selects keys."""
    with redis.Redis.from_url(store_server.url) as client:
        fill(client)
        dump = snapshot(client, ignore_times=True)
        assert dump[b"hash"].value == {b"until_ms": TIME, b"state": b"running"}
        assert dump[b"zset"].value == {b"turn": TIME, b"other": 1.5}
        assert dump[b"stream"].value == [(b"7-0", {b"data": b"x"}), (TIME, {b"data": b"y"})]
        assert dump[b"string"] == Entry("string", b"\xff\x00", None)
        assert set(snapshot(client, match="s*")) == {b"string", b"set", b"stream"}
        client.flushall()
        assert snapshot(client) == {}


def test_differences_name_what_changed(store_server: StoreServer) -> None:
    """A changed field, a new and a lost key are each one line; times within the slack are equal."""
    with redis.Redis.from_url(store_server.url) as client:
        fill(client)
        before = snapshot(client)
        assert differences(before, snapshot(client)) == []
        client.hset("hash", "until_ms", NOW_MS + 50)
        client.zadd("zset", {"turn": NOW_MS + 50})
        assert differences(before, snapshot(client), slack_ms=50) == []
        assert len(differences(before, snapshot(client), slack_ms=49)) == 2
        client.hset("hash", "state", "completed")
        client.delete("set")
        client.set("new", "1")
        lines = differences(before, snapshot(client), slack_ms=50)
    assert [line.partition(":")[0] for line in lines] == ["hash state", "set", "new"]
