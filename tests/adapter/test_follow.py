"""The exact retry of a stream that is still being told: it is followed live, from its first event, on any replica."""

import asyncio
import time

import pytest

from tests.adapter.gateway import end_lease, hold
from tests.adapter.test_streaming import Listener
from tests.support.waiting import until

KEYED = {"Idempotency-Key": "k", "X-Hermes-Session-Id": "s"}


def listen(gateway, model="gate_mid"):
    """A stream under the key `k`."""
    return Listener(gateway, "one two three", model=model, headers=KEYED)


async def test_a_retry_follows_from_the_first_event(start, upstream):
    """F3, H2: while the turn runs, on its own replica and on another; each event once, in order, to the same end."""
    gateways = [await start(), await start()]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        async with listen(gateways[1]) as elsewhere, listen(gateways[0]) as beside:
            for follower in (elsewhere, beside):
                await follower.until(b"one")
                assert b"three" not in follower.received
                assert follower.response.headers["Idempotency-Replayed"] == "true"
                assert follower.response.headers["X-Hermes-Session-Id"] == "s"
            upstream.release()
            told = [await stream.rest() for stream in (first, elsewhere, beside)]
    assert told[1:] == [told[0]] * 2
    assert told[0].endswith(b"data: [DONE]\n\n")
    assert upstream.count == 1


async def test_many_follow_without_a_connection_each(start, upstream, store_server):
    """F3: thirty on two replicas, JSON too: one upstream call, one answer, no connection more to the store."""
    gateways = [await start(), await start()]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        before = connections(store_server)
        asking = [
            asyncio.create_task(
                gateways[n % 2].chat("one two three", model="gate_mid", stream=n % 3 > 0, session_id="s", key="k")
            )
            for n in range(30)
        ]
        await asyncio.wait(asking, timeout=0.5)
        assert not any(task.done() for task in asking)
        assert connections(store_server) <= before + 2
        upstream.release()
        whole = await first.rest()
    replies = await asyncio.gather(*asking)
    assert {(reply.status, reply.replayed, reply.text()) for reply in replies} == {(200, True, "one two three")}
    assert {reply.body for reply in replies if reply.headers["Content-Type"].startswith("text/")} == {whole}
    assert upstream.count == 1


def connections(server):
    """How many clients the store has."""
    return len(server.cli("CLIENT", "LIST").splitlines())


async def test_who_follows_may_leave(start, upstream):
    """F3, B63: the turn and its other readers go on, also when the client that began it has gone."""
    gateways = [await start(), await start()]
    async with listen(gateways[1]) as staying_late:
        async with listen(gateways[0]) as follower:
            for stream in (staying_late, follower):
                await stream.until(b"one")
        await asyncio.sleep(0.3)
        upstream.release()
        assert (await staying_late.rest()).endswith(b"[DONE]\n\n")
    assert (upstream.count, upstream.aborted) == (1, 0)


async def test_silence_is_kept_alive(start, upstream, monkeypatch):
    """H1: a follower hears comments while the turn says nothing."""
    from gateway_adapter import event_stream

    monkeypatch.setattr(event_stream, "_IDLE_S", 0.2)
    gateways = [await start(poll_ms=100), await start(poll_ms=100)]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        async with listen(gateways[1]) as follower:
            await follower.until(b"one")
            upstream.release()
            assert (await follower.rest()).endswith(b"[DONE]\n\n")


async def test_a_retry_before_the_first_word_waits_for_it(start, upstream):
    """F3: the stream of a retry opens when there is something to tell."""
    gateways = [await start(), await start()]
    running = await hold(gateways[0], upstream, "one two three", session_id="s", key="k", stream=True)
    joining = asyncio.create_task(gateways[1].chat("one two three", model="gate", session_id="s", key="k", stream=True))
    await asyncio.wait([joining], timeout=0.2)
    assert not joining.done()
    upstream.release()
    assert (await joining).body == (await running).body


async def test_a_turn_that_dies_ends_its_followers(start, upstream, store_server):
    """G6, H5: within a lease each gets one error event and a clean end; the holder can add nothing to it."""
    gateways = [await start(), await start()]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        async with listen(gateways[1]) as follower:
            await follower.until(b"one")
            end_lease(store_server)
            began = time.monotonic()
            told = await follower.rest()
            assert time.monotonic() - began < 2
        upstream.release()
        late = await first.rest()
    assert (told.count(b"unknown_execution"), b"[DONE]" in told) == (1, False)
    assert (late.count(b"lease_lost"), b"[DONE]" in late) == (1, False)
    again = await gateways[1].chat("one two three", model="gate_mid", stream=True, session_id="s", key="k")
    assert again.code == "unknown_execution"


async def test_a_turn_that_is_stopped_ends_its_followers(start, upstream):
    """G8, H5: they are told that it was cancelled, as its own client is."""
    gateways = [await start(), await start()]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        async with listen(gateways[1]) as follower:
            await follower.until(b"one")
            await gateways[1].request("POST", "/api/sessions/s/cancel")
            for stream in (first, follower):
                told = await stream.rest()
                assert (told.count(b"turn_cancelled"), b"[DONE]" in told) == (1, False)


async def test_a_draining_replica_lets_nobody_follow(start, upstream):
    """J6, H5: those who do are told at once, to go on elsewhere; the turn and its followers there go on."""
    gateways = [await start(), await start()]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        async with listen(gateways[1]) as leaving, listen(gateways[0]) as staying:
            await leaving.until(b"one")
            await staying.until(b"one")
            gateways[1].coordinator.drain()
            told = await asyncio.wait_for(leaving.rest(), 1)
            assert (told.count(b"gateway_draining"), b"[DONE]" in told) == (1, False)
            upstream.release()
            assert (await staying.rest()).endswith(b"[DONE]\n\n")


async def test_a_short_absence_of_the_store_is_not_noticed(start_own, own_server, upstream):
    """B11, H2: shorter than a lease, it costs neither the turn nor its followers an event."""
    gateways = [await start_own(lease_ms=3_000), await start_own(lease_ms=3_000)]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        async with listen(gateways[1]) as follower:
            await follower.until(b"one")
            own_server.freeze()
            await asyncio.sleep(1.2)
            own_server.thaw()
            upstream.release()
            told = [await stream.rest() for stream in (first, follower)]
    assert told[0] == told[1]
    assert told[0].endswith(b"[DONE]\n\n")
    assert upstream.count == 1


async def test_followers_do_not_outwait_a_store_that_is_gone(start_own, own_server, upstream):
    """J1: after a lease without it they are told that nobody can say; never that nothing was dispatched."""
    gateways = [await start_own(lease_ms=900), await start_own(lease_ms=900)]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        async with listen(gateways[1]) as follower:
            await follower.until(b"one")
            own_server.freeze()
            told = [await asyncio.wait_for(stream.rest(), 6) for stream in (first, follower)]
            own_server.thaw()
    assert [b"lease_lost" in told[0], b"commit_unconfirmed" in told[1]] == [True, True]
    assert b"storage_unavailable" not in told[0] + told[1]


async def test_a_retry_in_the_other_form_waits_for_the_whole(start, upstream):
    """F3, F4: asked as JSON it joins the running stream and gets the answer once there is one."""
    gateways = [await start(), await start()]
    async with listen(gateways[0]) as first:
        await first.until(b"one")
        joining = asyncio.create_task(gateways[1].chat("one two three", model="gate_mid", session_id="s", key="k"))
        await asyncio.wait([joining], timeout=0.1)
        assert not joining.done()
        upstream.release()
        assert (await joining).text() == "one two three"
        await first.rest()
    assert upstream.count == 1


@pytest.mark.parametrize("rounds", [20])
async def test_joining_at_any_moment_tells_all(start, upstream, rounds):
    """F3, H2: whether a retry comes before, within or after the stream, it is told each event once."""
    gateways = [await start(), await start()]
    for number in range(rounds):
        options = {"model": "slow:0.003", "stream": True, "session_id": "s", "key": f"k{number}"}
        first = asyncio.create_task(gateways[0].chat("one two three four five", **options))
        await until(lambda number=number: upstream.count == number + 1)
        await asyncio.sleep(0.002 * number)
        joined = await gateways[1].chat("one two three four five", **options)
        assert joined.body == (await first).body
    assert upstream.count == rounds
