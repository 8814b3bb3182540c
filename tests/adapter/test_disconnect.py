"""Clients that leave, at any moment: what is worth finishing is finished, the rest is closed upstream, soon."""

import asyncio
import time

import pytest

from tests.adapter.gateway import hold, queued
from tests.support.waiting import until

SILENT = ("gate", "gate_mid")
"""The upstream says nothing at all, or nothing more."""


async def ask_and_leave(gateway, upstream, model, **options):
    """A request that waits for the upstream, and a client that leaves; when it left."""
    asking = asyncio.create_task(gateway.chat("one two", model=model, session_id="s", **options))
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent) == (model == "gate_mid"))
    asking.cancel()
    await asyncio.wait([asking])
    return time.monotonic()


@pytest.mark.parametrize(
    ("on_disconnect", "key"),
    [("auto", None), ("cancel", None), ("cancel", "k")],
    ids=["auto", "cancel", "cancel keyed"],
)
@pytest.mark.parametrize("model", SILENT)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_nobody_can_fetch_is_ended(start, upstream, store_server, on_disconnect, key, model, stream):
    """H4: noticed in silence: upstream closed within two seconds, the lease free, no half turn in the history."""
    gateway, other = await start(on_disconnect=on_disconnect), await start()
    left = await ask_and_leave(gateway, upstream, model, stream=stream, key=key)
    await upstream.until(lambda up: up.aborted == 1)
    await until(lambda: store_server.cli("ZCARD", "coord1:{default}:running") == 0)
    assert time.monotonic() - left < 2
    assert (await other.request("GET", "/api/sessions/s/messages")).json()["data"] == []
    if key:
        told = await other.chat("one two", model=model, session_id="s", stream=stream, key=key)
        assert (told.status, told.code) == (409, "turn_cancelled")
    assert (await other.chat("next", session_id="s")).status == 200


@pytest.mark.parametrize(
    ("on_disconnect", "key"), [("auto", "k"), ("finish", None), ("finish", "k")], ids=["auto", "finish", "finish keyed"]
)
@pytest.mark.parametrize("model", SILENT)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_worth_it_is_finished(start, upstream, on_disconnect, key, model, stream):
    """H4: the turn commits without its client and is readable; a retry is told the answer, and nothing ran twice."""
    gateway, other = await start(on_disconnect=on_disconnect), await start()
    await ask_and_leave(gateway, upstream, model, stream=stream, key=key)
    await asyncio.sleep(0.6)  # longer than between two looks at the connections
    assert (upstream.running, upstream.aborted) == (1, 0)
    upstream.release()

    async def committed():
        return (await other.session("s")).json()["turns"] == 1

    await until(committed)
    kept = (await other.request("GET", "/api/sessions/s/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["one two", "one two"]
    if key:
        told = await other.chat("one two", model=model, session_id="s", stream=stream, key=key)
        assert (told.status, told.text(), told.replayed) == (200, "one two", True)
    assert upstream.count == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_who_left_while_waiting_is_not_run(start, upstream, store_server, key):
    """G3, G13: also when the session gets free before anybody has noticed; its key is free."""
    gateway = await start()
    running = await hold(gateway, upstream, "first", session_id="s")
    leaving = asyncio.create_task(gateway.chat("gone", session_id="s", key=key))
    await queued(gateway, "s")
    leaving.cancel()
    await asyncio.wait([leaving])
    await asyncio.sleep(0.02)  # its leaving has arrived, and the next look at the connections is some time away
    upstream.release()
    assert (await running).status == 200
    assert (await gateway.chat("next", session_id="s")).status == 200
    await until(lambda: store_server.cli("ZCARD", "coord1:{default}:running") == 0)
    assert [call.json()["messages"][-1]["content"] for call in upstream.calls] == ["first", "next"]
    if key:
        assert (await gateway.chat("gone", session_id="s", key=key)).replayed is False


async def test_a_joiner_that_leaves_disturbs_nobody(start, upstream, store_server):
    """F3: neither the turn that it joined nor the others who did."""
    gateways = [await start(), await start()]
    running = await hold(gateways[0], upstream, "hello", session_id="s", key="k")
    joining = [asyncio.create_task(gateways[1].chat("hello", model="gate", session_id="s", key="k")) for _ in range(4)]
    await asyncio.wait(joining, timeout=0.1)
    for task in joining[:2]:
        task.cancel()
    await asyncio.sleep(0.5)
    upstream.release()
    replies = [await running, *[await task for task in joining[2:]]]
    assert [(reply.status, reply.replayed) for reply in replies] == [(200, False), (200, True), (200, True)]
    assert (upstream.count, upstream.aborted) == (1, 0)


async def test_leaving_at_any_moment_costs_nobody_anything(start, upstream, store_server):
    """H4, B53: sixty clients leave at various moments: every session is free afterwards, no turn is half kept."""
    gateway = await start(max_running=20)

    async def leave_after(number):
        options = {
            "session_id": f"s{number % 10}",
            "stream": number % 2 == 0,
            "key": f"k{number}" if number % 3 else None,
        }
        asking = asyncio.create_task(gateway.chat("one two three", model="slow:0.02", **options))
        await asyncio.sleep(0.004 * number)
        asking.cancel()
        await asyncio.wait([asking])

    await asyncio.gather(*(leave_after(number) for number in range(60)))
    await until(lambda: store_server.cli("ZCARD", "coord1:{default}:running") == 0, timeout_s=10)
    assert store_server.cli("KEYS", "*:queue:*") == []
    replies = await asyncio.gather(*(gateway.chat("next", session_id=f"s{n}") for n in range(10)))
    assert [reply.status for reply in replies] == [200] * 10
    for n in range(10):
        kept = (await gateway.request("GET", f"/api/sessions/s{n}/messages")).json()["data"]
        assert [message["role"] for message in kept] == ["user", "assistant"] * (len(kept) // 2)
