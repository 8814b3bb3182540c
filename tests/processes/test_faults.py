"""Replicas that die, stall or leave, and a store that stops."""

import asyncio
import itertools
import signal
import time

from tests.support.answers import SECRET
from tests.support.servers import StoreServer
from tests.support.waiting import until

LEASE_S = 1.5
LEASE = ("--lease-ttl", "1500ms")
WITHIN_S = 3.0  # two seconds are promised, the third is for a machine that is busy with other things


async def test_a_killed_replica_blocks_its_session_for_one_lease(start_fleet):
    """G6, F5: after kill -9 the conversation is free within a lease, a waiter gets it, and the key of the dead turn is
    refused as `unknown_execution`, never run again by itself."""
    fleet = start_fleet(2, *LEASE)
    dead = await fleet.hold("hello", session_id="s", key="k", at=0)
    waiting = asyncio.create_task(fleet.chat("next", session_id="s", at=1))
    await fleet.queued("s", at=1)
    fleet.replicas[0].kill()
    killed = time.monotonic()
    await asyncio.gather(dead, return_exceptions=True)
    granted = await waiting
    assert (granted.status, time.monotonic() - killed < LEASE_S + WITHIN_S) == (200, True)
    told = await fleet.chat("hello", model="gate", session_id="s", key="k", at=1)
    assert (told.status, told.code) == (409, "unknown_execution")
    await fleet.upstream.until(lambda up: up.aborted == 1)
    assert fleet.upstream.count == 2
    kept = (await fleet.request("GET", "/api/sessions/s/messages", at=1)).json()["data"]
    assert [message["content"] for message in kept] == ["next", "next"]


async def test_a_dead_turn_is_rerun_once_where_that_is_asked_for(start_fleet):
    """F5: with `--interrupted-turns rerun` a retry waits for the lease to end and runs the turn once more."""
    fleet = start_fleet(2, *LEASE, "--interrupted-turns", "rerun")
    dead = await fleet.hold("hello", session_id="s", key="k", at=0)
    fleet.replicas[0].kill()
    await asyncio.gather(dead, return_exceptions=True)
    fleet.upstream.mode = "ok"
    retries = await asyncio.gather(
        *(fleet.chat("hello", model="gate", session_id="s", key="k", at=1) for _ in range(5))
    )
    assert [reply.status for reply in retries] == [200] * 5
    assert len({reply.body for reply in retries}) == 1
    assert fleet.upstream.count == 2


async def test_waiters_of_a_killed_replica_do_not_stand_in_the_way(start_fleet):
    """G3: a waiter whose replica died is dropped within seconds, and the one behind it runs."""
    fleet = start_fleet(2, *LEASE)
    running = await fleet.hold("hello", session_id="s", at=1)
    lost = asyncio.create_task(fleet.chat("lost", session_id="s", at=0))
    await fleet.queued("s", at=1)
    behind = asyncio.create_task(fleet.chat("behind", session_id="s", at=1))
    await fleet.queued("s", 2, at=1)
    fleet.replicas[0].kill()
    await asyncio.gather(lost, return_exceptions=True)
    fleet.upstream.release()
    began = time.monotonic()
    assert [(await asked).status for asked in (running, behind)] == [200, 200]
    assert time.monotonic() - began < 10  # 3 s until it no longer counts; it would have waited for 45
    assert [call.json()["messages"][-1]["content"] for call in fleet.upstream.calls] == ["hello", "behind"]


async def test_a_stalled_replica_is_fenced(start_fleet):
    """G1, G2, G5: who slept through its lease writes nothing when it wakes, and its client is told `lease_lost`."""
    fleet = start_fleet(2, *LEASE)
    stalled = await fleet.hold("old", session_id="s", key="k", at=0)
    fleet.replicas[0].freeze()
    assert (await fleet.chat("new", session_id="s", at=1)).status == 200
    fleet.upstream.release()
    fleet.replicas[0].thaw()
    told = await stalled
    assert (told.status, told.code) == (409, "lease_lost")
    kept = (await fleet.request("GET", "/api/sessions/s/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["new", "new"]
    assert (await fleet.chat("old", model="gate", session_id="s", key="k", at=1)).code == "unknown_execution"


async def test_a_frozen_store_is_503_and_then_the_same_requests_run_once(start_fleet):
    """J1, G13: frozen, every replica answers 503 within two seconds; thawed, the same requests run once, at once."""
    asked = [
        {"at": at, "session_id": session_id, "key": key and f"{key}{session_id}", "stream": stream}
        for at, session_id, key, stream in itertools.product((0, 1), (None, "s"), (None, "k"), (False, True))
    ]
    with StoreServer() as own:
        fleet = start_fleet(2, server=own)
        for at in (0, 1):
            assert (await fleet.chat("warm", session_id="s", at=at)).status == 200

        async def ask_all():
            began = time.monotonic()
            replies = await asyncio.gather(*(fleet.chat("hello", **options) for options in asked))
            return replies, time.monotonic() - began

        own.freeze()
        refused, took_s = await ask_all()
        assert took_s < WITHIN_S
        told = {(reply.status, reply.code, reply.headers["Retry-After"]) for reply in refused}
        assert told == {(503, "storage_unavailable", "1")}
        own.thaw()
        answered, took_s = await ask_all()
        assert took_s < WITHIN_S  # a lease that nobody holds would take 30
        assert {reply.status for reply in answered} == {200}
        # Two keys, each sent four times, are one turn each; the eight requests without a key are turns of their own.
        assert fleet.upstream.count == 2 + 2 + 8


async def test_what_a_dead_replica_asked_of_a_frozen_store_is_not_granted(start_fleet):
    """G13: a request whose caller was refused, and whose replica then died, holds nobody up once the store thaws."""
    with StoreServer() as own:
        fleet = start_fleet(2, server=own)
        for at in (0, 1):
            assert (await fleet.chat("warm", session_id="s", at=at)).status == 200
        own.freeze()
        assert (await fleet.chat("hello", session_id="s", at=0)).status == 503
        fleet.replicas[0].kill()
        own.thaw()
        began = time.monotonic()
        assert (await fleet.chat("hello", session_id="s", at=1)).status == 200
        assert time.monotonic() - began < WITHIN_S  # a lease that nobody holds would take 30
        assert fleet.upstream.count == 3


async def test_a_replica_that_is_told_to_leave(start_fleet):
    """F10, J6: after SIGTERM it is not ready, replays what it knows, refuses what is new, waits or joins, and leaves
    when its running turns are done."""
    fleet = start_fleet(2)
    first = await fleet.chat("hello", key="k")
    running = await fleet.hold("one two", session_id="s", key="running", at=0, stream=True)
    waiting = asyncio.create_task(fleet.chat("next", session_id="s", at=0))
    joining = asyncio.create_task(fleet.chat("one two", model="gate", session_id="s", key="running", at=0, stream=True))
    await fleet.queued("s", at=1)
    fleet.replicas[0].signal(signal.SIGTERM)

    async def is_draining():
        return (await fleet.request("GET", "/readyz", at=0)).status == 503

    await until(is_draining)
    assert (await fleet.request("GET", "/healthz", at=0)).status == 200
    replay = await fleet.chat("hello", key="k", at=0)
    assert (replay.status, replay.body) == (200, first.body)
    refused = [await fleet.chat("hello", at=0), await fleet.chat("hello", at=0, stream=True, key="new")]
    refused += [await waiting, await joining]
    assert {(reply.status, reply.code) for reply in refused} == {(503, "gateway_draining")}
    assert (await fleet.chat("hello", at=1)).status == 200
    fleet.upstream.release()
    assert (await running).text() == "one two"
    assert await asyncio.to_thread(fleet.replicas[0].wait) == 0
    again = await fleet.chat("one two", model="gate", session_id="s", key="running", at=1, stream=True)
    assert (again.text(), again.replayed) == ("one two", True)


async def test_the_log_of_a_replica_keeps_secrets(start_fleet):
    """J8: whatever goes wrong, keys, the upstream's words about them and people's texts are not logged."""
    env = {"COORDINATOR_UPSTREAM_API_KEY": "sk-own-upstream-key", "COORDINATOR_API_KEYS": "acme:sk-key-of-a-client"}
    fleet = start_fleet(1, "--log-level", "debug", "--upstream-timeout", "300ms", **env)
    for model in ("ok", "status:401", "status:500", "reset_mid", "malformed", "hang", "status:403"):
        for stream in (False, True):
            reply = await fleet.chat("a very private text", model=model, stream=stream, api_key="sk-key-of-a-client")
            assert reply.status in (200, 502)
    assert (await fleet.chat("hello", api_key="sk-wrong")).status == 401
    assert (await fleet.request("GET", "/api/sessions/%FF", api_key="sk-key-of-a-client")).status == 400
    await asyncio.to_thread(fleet.replicas[0].stop)
    log = fleet.replicas[0].logs
    assert "listening" in log
    for secret in ("sk-own-upstream-key", "sk-key-of-a-client", "sk-wrong", SECRET, "private"):
        assert secret not in log
