"""Leaving on SIGTERM: nothing new, what runs may finish, the rest is interrupted and released."""

import asyncio
import signal
import time

import pytest

from gateway_adapter import app as serving
from tests.adapter.gateway import dump, hold
from tests.adapter.responding import run, settled
from tests.adapter.test_streaming import Listener
from tests.support import clients
from tests.support.replicas import Replica
from tests.support.waiting import until


def drain(gateway, hurry=None):
    """What SIGTERM starts; the event is the second one."""
    return asyncio.create_task(serving._drain(gateway.app, hurry or asyncio.Event()))


@pytest.mark.parametrize("stream", [False, True])
async def test_what_runs_may_finish(start, upstream, store_server, stream):
    """J6: red, refusing what is new without a trace, and done as soon as the last turn is."""
    gateway = await start()
    running = await hold(gateway, upstream, "hello", session_id="s", key="k", stream=stream)
    draining = drain(gateway)
    ready = await until_red(gateway)
    assert (ready["status"], ready["running"], ready["store"]) == ("draining", 1, "ok")
    assert (await gateway.request("GET", "/healthz")).status == 200
    before = dump(store_server)
    for again in (False, True):
        refused = await gateway.chat("new", session_id="t", key="new", stream=again)
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "gateway_draining", "1")
    refused = await run(gateway, "new", key="run")
    assert (refused.status, refused.code) == (503, "gateway_draining")
    assert set(dump(store_server)) == set(before)
    assert not draining.done()
    began = time.monotonic()
    upstream.release()
    assert (await running).status == 200
    await draining
    assert time.monotonic() - began < 1


async def until_red(gateway):
    """What readiness says once it is red."""
    found = {}

    async def red():
        reply = await gateway.request("GET", "/readyz")
        found.update(reply.json())
        return reply.status == 503

    await until(red)
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_what_does_not_finish_is_interrupted(start, upstream, store_server, stream):
    """J6, F5: past the limit it is closed upstream, told to its client, recorded and released; the key says so."""
    gateway, other = await start(drain_timeout_ms=150), await start()
    running = await hold(gateway, upstream, "hello", session_id="s", key="k", stream=stream)
    began = time.monotonic()
    await drain(gateway)
    assert 0.15 <= time.monotonic() - began < 1
    told = await running
    assert (told.status, told.code) == (409, "lease_lost")
    assert told.headers["x-should-retry"] == "false"
    await upstream.until(lambda up: up.aborted == 1)
    await until(lambda: store_server.cli("ZCARD", "coord1:{default}:running") == 0, timeout_s=1)
    again = await other.chat("hello", model="gate", session_id="s", key="k", stream=stream)
    assert (again.status, again.code) == (409, "unknown_execution")
    assert (await other.chat("next", session_id="s")).status == 200
    assert (await other.session("s")).json()["turns"] == 1


async def test_a_stream_that_does_not_finish_ends_with_an_error(start, upstream):
    """J6, H5: one error event after what was said, no `[DONE]`, a clean end."""
    gateway = await start(drain_timeout_ms=100)
    async with Listener(gateway, "one two", model="gate_mid") as stream:
        await stream.until(b"one")
        await drain(gateway)
        received = await stream.rest()
    assert (received.count(b"lease_lost"), b"[DONE]" in received) == (1, False)


async def test_a_second_signal_ends_the_wait(start, upstream, store_server):
    """J6: at once, and still releasing."""
    gateway = await start(drain_timeout_ms=60_000)
    running = await hold(gateway, upstream, "hello", session_id="s")
    hurry = asyncio.Event()
    draining = drain(gateway, hurry)
    await until_red(gateway)
    hurry.set()
    await asyncio.wait_for(draining, 1)
    assert (await running).code == "lease_lost"
    assert store_server.cli("ZCARD", "coord1:{default}:running") == 0


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_process_leaves_in_time(http, store_server, upstream, signals):
    """J6: SIGTERM waits for the drain time at most, a second one for nothing; the exit is clean, nothing stays held."""
    limit = "300ms" if signals == 1 else "60s"
    with Replica("--drain-timeout", limit, store=store_server.url, upstream=upstream.url) as replica:
        asking = asyncio.create_task(clients.chat(http, replica.url, "hello", model="gate", session_id="s", key="k"))
        await upstream.until(lambda up: up.running == 1)
        began = time.monotonic()
        for _ in range(signals):
            replica.signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
        assert await asyncio.to_thread(replica.wait) == 0
        assert time.monotonic() - began < 5
        told = await asking
        assert (told.status, told.code) == (409, "lease_lost")
        assert store_server.cli("ZCARD", "coord1:{default}:running") == 0
        assert store_server.cli("EXISTS", "coord1:replicas") == 0
        assert "Traceback" not in replica.logs


async def test_work_that_waits_is_started_elsewhere(start, upstream):
    """J6, I4: accepted on a replica that leaves, it runs once, on another."""
    gateway, other = await start(vouch_ms=400, poll_ms=100), await start(vouch_ms=400, poll_ms=100)
    busy = await hold(other, upstream, "hello", session_id="s")
    accepted = await run(gateway, "work", session="s", model="gate")
    assert accepted.status == 202
    await drain(gateway)
    upstream.release()
    await busy
    await upstream.until(lambda up: up.count == 2, timeout_s=8)
    upstream.release()
    ended = await settled(other, f"/v1/runs/{accepted.json()['id']}")
    assert ended["status"] == "completed"
    assert upstream.count == 2


async def test_work_that_runs_is_interrupted(start, upstream):
    """J6, I3: what does not finish in time reads interrupted, on every replica."""
    gateway, other = await start(drain_timeout_ms=100), await start()
    accepted = await run(gateway, "work", session="s", model="gate")
    await upstream.until(lambda up: up.running == 1)
    await drain(gateway)
    ended = await settled(other, f"/v1/runs/{accepted.json()['id']}")
    assert ended["status"] == "interrupted"
    await upstream.until(lambda up: up.aborted == 1)
    assert (await other.chat("next", session_id="s")).status == 200
