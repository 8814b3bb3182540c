"""Stopping what runs, from any replica, with the session going on afterwards."""

import asyncio
import time

import pytest

from tests.adapter.gateway import hold, queued
from tests.adapter.test_streaming import Listener
from tests.support.waiting import until

INTERRUPT = {"X-Hermes-Turn-Policy": "interrupt"}


async def texts(gateway, session_id="s"):
    """The transcript's texts."""
    messages = (await gateway.request("GET", f"/api/sessions/{session_id}/messages")).json()["data"]
    return [message["content"] for message in messages]


async def stop(gateway, session_id="s", **options):
    """`POST /api/sessions/{id}/cancel`."""
    return await gateway.request("POST", f"/api/sessions/{session_id}/cancel", **options)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_is_stopped_from_another_replica(start, upstream, store_server, stream, key):
    """G7, G8: it ends within a moment as cancelled, upstream too; no half turn is kept, and the next one runs."""
    gateways = [await start(), await start()]
    running = await hold(gateways[0], upstream, "one two", session_id="s", stream=stream, key=key)
    (live,) = (await gateways[1].session("s")).json()["live"]
    began = time.monotonic()
    told = await stop(gateways[1])
    assert (told.status, told.json()) == (200, {"id": "s", "object": "session.cancelled", "turns": [live["turn"]]})
    stopped = await running
    assert (stopped.status, stopped.code) == (409, "turn_cancelled")
    assert stopped.headers["x-should-retry"] == "false"
    await upstream.until(lambda up: up.aborted == 1)
    assert time.monotonic() - began < 2
    if key:
        again = await gateways[1].chat("one two", model="gate", session_id="s", stream=stream, key=key)
        assert (again.status, again.code) == (409, "turn_cancelled")
    assert store_server.cli("EXISTS", "coord1:{default}:running", "coord1:{default}:cancelling") == 0
    assert (await gateways[1].chat("next", session_id="s")).status == 200
    assert await texts(gateways[0]) == ["next", "next"]
    assert upstream.count == 2


async def test_a_stream_under_way_ends_with_an_error(start, upstream):
    """H5, G8: what was said, one error event, no `[DONE]`, then a clean end."""
    gateways = [await start(), await start()]
    async with Listener(gateways[0], "one two", model="gate_mid", headers={"X-Hermes-Session-Id": "s"}) as stream:
        await stream.until(b"one")
        await stop(gateways[1])
        received = await stream.rest()
    assert received.count(b"turn_cancelled") == 1
    assert b"[DONE]" not in received
    await upstream.until(lambda up: up.aborted == 1)
    assert (await gateways[1].session("s")).json()["turns"] == 0


async def test_stopping_needs_no_message(start, upstream, store_server):
    """G7, B45: with every message lost, the next renewal, a third of a lease away, tells the holder."""
    gateways = [await start(lease_ms=900), await start(lease_ms=900)]
    running = await hold(gateways[0], upstream, "hello", session_id="s")
    (live,) = (await gateways[1].session("s")).json()["live"]
    store_server.cli("SADD", "coord1:{default}:cancelling", live["turn"])
    began = time.monotonic()
    assert (await running).code == "turn_cancelled"
    assert time.monotonic() - began < 0.9 / 3 + 0.5


async def test_waiters_go_on(gateway, upstream):
    """G7: what is stopped is the turn that runs; those in line take its place."""
    running = await hold(gateway, upstream, "one", session_id="s")
    waiting = asyncio.create_task(gateway.chat("two", session_id="s"))
    await queued(gateway, "s")
    await stop(gateway)
    assert ((await running).code, (await waiting).status) == ("turn_cancelled", 200)
    assert await texts(gateway) == ["two", "two"]


async def test_there_may_be_nothing_to_stop(gateway):
    """G7: an idle session stays as it is; one that is unknown or retired is 404."""
    await gateway.chat("hello", session_id="s")
    assert (await stop(gateway)).json()["turns"] == []
    assert (await gateway.chat("hello", session_id="s")).status == 200
    assert (await stop(gateway, "unknown")).status == 404
    await gateway.delete("s")
    refused = await stop(gateway)
    assert (refused.status, refused.code) == (404, "not_found")


async def test_a_turn_that_ends_meanwhile_has_ended(start, upstream):
    """G8: of a hundred stops that race with the end each turn ends one way, and everybody is told the same."""
    gateways = [await start(), await start()]
    ends = []
    for number in range(100):
        name = f"s{number}"
        asking = asyncio.create_task(gateways[0].chat("hello", session_id=name, key=name, model="slow:0.004"))
        await until(lambda number=number: upstream.count == number + 1)
        await asyncio.sleep(0.0001 * (number % 60))
        await stop(gateways[1], name)
        reply = await asking
        again = await gateways[1].chat("hello", session_id=name, key=name, model="slow:0.004")
        assert again.code == reply.code
        assert (reply.status, again.status) in {(200, 200), (409, 409)}
        assert (await gateways[1].session(name)).json()["turns"] == (reply.status == 200)
        ends.append(reply.code)
    assert set(ends) <= {None, "turn_cancelled"}
    assert upstream.count == 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["header", "setting"])
async def test_an_interrupter_takes_over(start, upstream, by, stream):
    """G3: the running turn is stopped, and the request is served before those who wait."""
    gateways = [await start(), await start(turn_policy="interrupt" if by == "setting" else "wait")]
    running = await hold(gateways[0], upstream, "long", session_id="s")
    waiting = asyncio.create_task(gateways[0].chat("patient", session_id="s"))
    await queued(gateways[0], "s")
    headers = INTERRUPT if by == "header" else {}
    served = await gateways[1].chat("urgent", session_id="s", stream=stream, headers=headers)
    assert (served.status, served.text()) == (200, "urgent")
    assert ((await running).code, (await waiting).status) == ("turn_cancelled", 200)
    assert await texts(gateways[1]) == ["urgent", "urgent", "patient", "patient"]
    assert upstream.max_overlap == 1


async def test_an_interrupter_waits_for_the_other_to_leave(start, upstream, store_server, monkeypatch):
    """G3, G1: it is not served beside a turn that takes its time to stop."""
    from coordinator.steps import Steps

    gateways = [await start(lease_ms=900), await start(lease_ms=900)]
    running = await hold(gateways[0], upstream, "long", session_id="s")
    real, leave = Steps.turn_abandon, asyncio.Event()

    async def slowly(*args, **options):
        await leave.wait()
        return await real(*args, **options)

    monkeypatch.setattr(Steps, "turn_abandon", slowly)
    interrupting = asyncio.create_task(gateways[1].chat("urgent", session_id="s", headers=INTERRUPT))
    await upstream.until(lambda up: up.aborted == 1)
    await asyncio.wait([interrupting], timeout=0.1)
    assert upstream.count == 1
    leave.set()
    assert ((await interrupting).status, (await running).code) == (200, "turn_cancelled")
