"""The faulty wire of the kit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.support.proxy import DropReplyProxy
from tests.support.resp import frame_end, take_frames
from tests.support.servers import StoreServer
from tests.support.waiting import until


@pytest.fixture
async def proxy(store_server: StoreServer) -> AsyncIterator[DropReplyProxy]:
    """A proxy in front of the shared server."""
    async with DropReplyProxy(store_server.port) as running:
        yield running


def connect(proxy: DropReplyProxy, retries: int = 0, **options: Any) -> redis.asyncio.Redis:
    """A client through the proxy that gives up after `retries` more attempts."""
    return redis.asyncio.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), retries), **options)


@pytest.mark.parametrize(("retries", "times", "executed"), [(0, 1, 1), (1, 1, 2), (1, 2, 2)])
async def test_a_lost_reply_leaves_the_effect(
    proxy: DropReplyProxy, store_server: StoreServer, retries: int, times: int, executed: int
) -> None:
    """The server acts, the caller sees a broken connection, and a library that re-sends makes it act twice."""
    proxy.drop_next_reply(b"INCR", times=times)
    async with connect(proxy, retries) as client:
        if retries < times:
            with pytest.raises(redis.ConnectionError):
                await client.incr("n")
        else:
            assert await client.incr("n") == executed
    assert store_server.cli("GET", "n") == b"%d" % executed
    assert proxy.dropped == times


@pytest.mark.parametrize("protocol", [2, 3])
async def test_only_the_matching_reply_is_lost(proxy: DropReplyProxy, store_server: StoreServer, protocol: int) -> None:
    """In a pipeline the replies before it arrive, and a pipeline is one round trip."""
    async with connect(proxy, protocol=protocol) as client:
        await client.ping()
        before = proxy.round_trips
        pipeline: Any = client.pipeline(transaction=False)
        pipeline.set("a", "x" * 200_000).get("a").hgetall("nothing")
        assert await pipeline.execute() == [True, b"x" * 200_000, {}]
        assert proxy.round_trips == before + 1
        proxy.drop_next_reply(b"marked")
        connection = await client.connection_pool.get_connection()
        await connection.send_packed_command(connection.pack_commands([("PING",), ("SET", "marked", "1"), ("PING",)]))
        assert await connection.read_response() in (b"PONG", "PONG")
        with pytest.raises(redis.ConnectionError):
            await connection.read_response()
        await client.connection_pool.release(connection)
    assert store_server.cli("GET", "marked") == b"1"


async def test_swallowed_replies_time_out(proxy: DropReplyProxy, store_server: StoreServer) -> None:
    """`swallow` executes and stays silent, and the connection stays open."""
    async with connect(proxy, socket_timeout=0.1) as client:
        await client.ping()
        proxy.swallow = True
        with pytest.raises(redis.TimeoutError):
            await client.incr("n")
        proxy.swallow = False
        assert await client.incr("n") == 2


async def test_a_cut_breaks_connections_and_refuse_keeps_them_broken(proxy: DropReplyProxy) -> None:
    """`cut` ends what is open; with `refuse` nothing new comes up until it is taken back."""
    async with connect(proxy) as client:
        await client.ping()
        assert proxy.connections == 1
        proxy.refuse = True
        proxy.cut()
        await until(lambda: proxy.connections == 0)
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                await client.ping()
        proxy.refuse = False
        assert await client.ping()


async def test_replies_are_delayed(proxy: DropReplyProxy) -> None:
    """`delay_ms` holds each reply back that long."""
    async with connect(proxy) as client:
        await client.ping()
        proxy.delay_ms = 50
        began = time.monotonic()
        await client.ping()
        assert time.monotonic() - began >= 0.05


async def test_published_messages_pass(proxy: DropReplyProxy, store_server: StoreServer) -> None:
    """Subscriptions work through the proxy: a pushed message is no reply."""
    async with connect(proxy, protocol=3) as client, client.pubsub() as subscription:
        await subscription.subscribe("channel")
        assert (await subscription.get_message(timeout=2))["type"] == "subscribe"
        store_server.cli("PUBLISH", "channel", "hello")
        assert (await subscription.get_message(timeout=2))["data"] == b"hello"


async def test_pushed_messages_are_no_replies(proxy: DropReplyProxy, store_server: StoreServer) -> None:
    """A push between a request and the next one does not shift which reply gets lost."""
    async with connect(proxy, protocol=3, single_connection_client=True) as client:
        await client.execute_command("CLIENT", "TRACKING", "ON")
        await client.get("a")
        store_server.cli("SET", "a", "1")  # pushes an invalidation to the tracking client
        proxy.drop_next_reply(b"PING")
        with pytest.raises(redis.ConnectionError):
            await client.ping()
    assert proxy.dropped == 1


def test_frames_end_where_they_end() -> None:
    """Every kind of frame is cut exactly, and an unfinished one waits for the rest."""
    frames = [
        b"PING\r\n",
        b"+OK\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        b"%1\r\n+a\r\n~2\r\n_\r\n#t\r\n",
        b"|1\r\n+ttl\r\n:5\r\n,1.5\r\n",
        b">2\r\n+message\r\n=5\r\ntxt:a\r\n",
    ]
    assert list(take_frames(bytearray(b"".join(frames)))) == frames
    for frame in frames:
        assert all(frame_end(frame[:size]) is None for size in range(len(frame)))
