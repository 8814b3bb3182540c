"""When an Idempotency-Key is taken, when it is free again, how long it is kept, and that its answer outranks limits."""

import asyncio

import pytest

from coordinator.scripts import load
from tests.adapter.gateway import dump, hold, queued
from tests.support.monitor import Monitor


@pytest.mark.parametrize("policy", ["reject", "wait"])
async def test_a_refusal_for_being_busy_frees_the_key(start, upstream, store_server, policy):
    """F6, G3: busy, or waited in vain, leaves no key behind: the same request runs once the session is free."""
    gateway = await start(turn_wait_ms=200)
    running = await hold(gateway, upstream, "hello", session_id="s")
    busy = await gateway.chat("next", session_id="s", key="k", headers={"X-Hermes-Turn-Policy": policy})
    assert (busy.status, busy.code) == (409, "session_busy")
    assert store_server.cli("KEYS", "*:idempotency:*") == []
    upstream.release()
    await running
    assert (await gateway.chat("next", session_id="s", key="k")).status == 200
    assert upstream.count == 2


async def test_a_full_queue_and_a_full_house_free_the_key(start, upstream, store_server):
    """F6: `session_queue_full` and `rate_limit_exceeded` leave no key behind."""
    gateway = await start(queue_limit=0, max_running=1)
    running = await hold(gateway, upstream, "hello", session_id="s")
    full = await gateway.chat("next", session_id="s", key="k")
    limited = await gateway.chat("next", session_id="other", key="k")
    assert [(reply.status, reply.code) for reply in (full, limited)] == [
        (429, "session_queue_full"),
        (429, "rate_limit_exceeded"),
    ]
    assert store_server.cli("KEYS", "*:idempotency:*") == []
    upstream.release()
    await running
    assert (await gateway.chat("next", session_id="s", key="k")).status == 200


@pytest.mark.parametrize("key_ttl_ms", [0, 3_600_000])
async def test_retention_counts_from_the_end(start, upstream, store_server, key_ttl_ms):
    """F7: from the terminal state on an answer is kept for `result_ttl`, the used key for `key_ttl` (0 for ever)."""
    gateway = await start(result_ttl_ms=60_000, key_ttl_ms=key_ttl_ms, turn_limit_ms=7_200_000)

    def left_ms(kind):
        (key,) = store_server.cli("KEYS", f"*:{kind}:*")
        return store_server.cli("PTTL", key)

    def check_the_end():
        assert all(55_000 < left_ms(kind) <= 60_000 for kind in ("turn", "events"))
        kept_ms = left_ms("idempotency")
        assert kept_ms == -1 if key_ttl_ms == 0 else 3_590_000 < kept_ms <= 3_600_000

    running = await hold(gateway, upstream, "hello you", model="gate_mid", key="k", stream=True)
    assert left_ms("turn") > 7_200_000
    assert left_ms("idempotency") == -1 if key_ttl_ms == 0 else left_ms("idempotency") > 10_000_000
    upstream.release()
    assert (await running).events()[-1] == "[DONE]"
    check_the_end()
    store_server.flushall()
    assert (
        '"upstream_failed"' in (await gateway.chat("hello you", model="reset_mid", key="k", stream=True)).events()[-1]
    )
    check_the_end()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_no_longer_kept_is_expired_and_nothing_runs(gateway, upstream, store_server, stream):
    """F7: between the two retentions an exact retry is 409 `idempotency_expired`."""
    await gateway.chat("hello", key="k", stream=stream)
    store_server.cli("DEL", *store_server.cli("KEYS", "*:turn:*"), *store_server.cli("KEYS", "*:events:*"))
    for _ in range(2):
        again = await gateway.chat("hello", key="k", stream=stream)
        assert (again.status, again.code) == (409, "idempotency_expired")
        assert again.headers["x-should-retry"] == "false"
    assert upstream.count == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_too_large_to_keep_is_not_run_again(start, upstream, store_server, stream):
    """F7: its client gets it whole; a retry is 409 `idempotency_expired`, and nothing of it lies in the store."""
    gateway = await start(max_stored_bytes=20_000)
    first = await gateway.chat("hello", model="big:90000", key="k", stream=stream)
    assert first.text() == "x" * 90_000
    for form in (False, True):
        again = await gateway.chat("hello", model="big:90000", key="k", stream=form)
        assert (again.status, again.code) == (409, "idempotency_expired")
    assert upstream.count == 1
    assert "x" * 1_000 not in str(dump(store_server))


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_turn_is_two_steps(gateway, store_server, session_id):
    """F9: commit, completion of the key and release are one script: a keyed turn is a begin and a finish."""
    with Monitor(store_server) as monitor:
        await gateway.chat("hello", session_id=session_id, key="k")
        await gateway.chat("hello again", session_id=session_id, key="k2")
        begin, finish = (load(name).sha.encode() for name in ("turn_begin", "turn_finish"))
        assert [call.script for call in monitor.calls if len(call.script) == 40][-2:] == [begin, finish]
        assert monitor.violations() == []
        written = {command[1] for command in monitor.calls[-1].commands if command[0].upper() in (b"HSET", b"ZREM")}
    kinds = {key.split(b":")[2] for key in written}
    assert {b"turn", b"idempotency", b"running", b"conversation"} <= kinds


async def test_a_replay_is_served_before_any_limit(start, upstream):
    """F10: with the house full, the session busy and the queue closed a known key is still answered."""
    gateway = await start(max_running=1, queue_limit=0)
    first = await gateway.chat("hello", session_id="s", key="k")
    running = await hold(gateway, upstream, "more", session_id="s")
    again = await gateway.chat("hello", session_id="s", key="k")
    assert (again.status, again.body) == (200, first.body)
    upstream.release()
    await running


async def test_a_replay_is_served_while_draining(gateway, upstream):
    """F10, J6: a draining replica answers a known key, and refuses what is new and what it would have to wait for."""
    first = await gateway.chat("hello", key="k")
    running = await hold(gateway, upstream, "other", key="running")
    joining = asyncio.create_task(gateway.chat("other", model="gate", key="running"))
    waiting = await hold(gateway, upstream, "hello", session_id="s")
    queueing = asyncio.create_task(gateway.chat("hello", session_id="s"))
    await queued(gateway, "s")
    gateway.coordinator.drain()
    again = await gateway.chat("hello", key="k")
    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    conflict = await gateway.chat("hello!", key="k")
    assert (conflict.status, conflict.code) == (409, "admission_conflict")
    refused = [
        await gateway.chat("hello"),
        await gateway.chat("hello", stream=True, key="new"),
        await gateway.chat("other", model="gate", key="running"),
        await joining,
        await queueing,
    ]
    assert [(reply.status, reply.code) for reply in refused] == [(503, "gateway_draining")] * 5
    assert {reply.headers["Retry-After"] for reply in refused} == {"1"}
    upstream.release()
    assert [(await task).status for task in (running, waiting)] == [200, 200]
    assert upstream.count == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replay_is_served_while_the_store_is_full(start_own, own_server, upstream, stream):
    """F10, J1: a full store takes nothing new (503), still answers known keys, and lets what runs commit."""
    gateway = await start_own(patience_ms=500)
    first = await gateway.chat("hello", key="k", stream=stream)
    running = await hold(gateway, upstream, "other", key="running")
    own_server.cli("CONFIG", "SET", "maxmemory", "1")
    again = await gateway.chat("hello", key="k", stream=stream)
    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    conflict = await gateway.chat("hello!", key="k", stream=stream)
    assert (conflict.status, conflict.code) == (409, "admission_conflict")
    for key in (None, "new"):
        refused = await gateway.chat("hello", key=key, stream=stream)
        assert (refused.status, refused.code) == (503, "storage_unavailable")
        assert refused.headers["Retry-After"] == "1"
    upstream.release()
    assert (await running).status == 200
    replay = await gateway.chat("other", model="gate", key="running", stream=stream)
    assert (replay.status, replay.replayed) == (200, True)
    assert upstream.count == 2
    own_server.cli("CONFIG", "SET", "maxmemory", "0")
    assert (await gateway.chat("hello", key="new", stream=stream)).status == 200
