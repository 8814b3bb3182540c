"""`DELETE /api/sessions/{id}` and what retention leaves of a session."""

import asyncio

import pytest

from coordinator.scripts import load
from tests.adapter.gateway import dump, end_lease, hold, queued, session_path, user

SECRET_TEXT = "the-text-that-must-go"
LONG_AGO_MS = 1_000_000_000_000  # 2001: past every retention


def age(server, index):
    """Make every conversation in `sessions` or `tombstones` as old as it gets."""
    key = f"coord1:{{default}}:{index}"
    for cid in server.cli("ZRANGE", key, 0, -1):
        server.cli("ZADD", key, "XX", LONG_AGO_MS, cid)


async def test_a_deletion_says_so_once(gateway, store_server):
    """E1: 200 with the documented body, then 404, for reads, turns and the same deletion again; one tombstone."""
    session_id = (await gateway.chat("hello")).session_id
    assert (await gateway.delete(session_id)).json() == {"id": session_id, "object": "session.deleted", "deleted": True}
    later = [
        await gateway.delete(session_id),
        await gateway.session(session_id),
        await gateway.chat("hello", session_id=session_id),
    ]
    assert [(reply.status, reply.code) for reply in later] == [(404, "not_found")] * 3
    assert store_server.cli("ZCARD", "coord1:{default}:tombstones") == 1


async def test_deletions_that_race_retire_once(start, store_server):
    """E1: of ten deletions at once over two replicas one retires, the others find nothing."""
    gateways = [await start(), await start()]
    session_id = (await gateways[0].chat("hello")).session_id
    replies = await asyncio.gather(*(gateways[i % 2].delete(session_id) for i in range(10)))
    assert sorted(reply.status for reply in replies) == [200] + [404] * 9
    assert store_server.cli("ZCARD", "coord1:{default}:tombstones") == 1


async def test_a_deletion_whose_reply_was_lost_is_still_200(start_behind, proxy):
    """E1, J2: the store client sends the script again and is answered as the first time."""
    gateway = await start_behind()
    session_id = (await gateway.chat("hello")).session_id
    await gateway.delete("warm")  # now the server knows the script by its hash
    proxy.drop_next_reply(load("session_delete").sha.encode())
    assert (await gateway.delete(session_id)).status == 200
    assert proxy.dropped == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_late_writer_finds_nothing_to_revive(gateway, upstream, store_server, key):
    """E2: a turn that ends after its session was deleted writes nothing, even when the tombstone is gone."""
    asking = await hold(gateway, upstream, "hello", session_id="s", key=key)
    assert (await gateway.delete("s", "?force=true")).status == 200
    store_server.cli("DEL", "coord1:{default}:tombstones")
    before = dump(store_server)
    upstream.release()
    told = await asking
    assert (told.status, told.code) == (409, "turn_cancelled")
    assert told.headers["x-should-retry"] == "false"
    assert (await gateway.session("s")).status == 404
    assert (await gateway.chat("hello", session_id="s")).status == 404
    assert set(dump(store_server)) <= set(before)
    if key:
        again = await gateway.chat("hello", model="gate", session_id="s", key=key)
        assert (again.status, again.code) == (409, "turn_cancelled")
    assert upstream.count == 1


async def test_a_busy_session_is_not_deleted(gateway, upstream):
    """E3: a live turn, and one that waits, make it 409 with a time to wait; once they are done it is 200."""
    first = await hold(gateway, upstream, "hello", session_id="s")
    refused = await gateway.delete("s")
    assert (refused.status, refused.code) == (409, "session_busy")
    assert int(refused.headers["Retry-After"]) >= 1
    second = asyncio.create_task(gateway.chat("again", session_id="s"))
    await queued(gateway, "s")
    assert (await gateway.delete("s", "?force=false")).code == "session_busy"
    upstream.release()
    assert [(await asked).status for asked in (first, second)] == [200, 200]
    assert (await gateway.delete("s")).status == 200


async def test_an_expired_lease_does_not_count(gateway, upstream, store_server):
    """E3: a turn whose lease ended, its replica being dead, does not stand in the way of a deletion."""
    asking = await hold(gateway, upstream, "hello", session_id="s")
    end_lease(store_server)
    assert (await gateway.delete("s")).status == 200
    upstream.release()
    told = await asking
    assert (told.status, told.code) == (409, "lease_lost")
    assert (await gateway.session("s")).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_deletion_ends_turns_on_every_replica(start, upstream, stream):
    """E3: live turns are stopped wherever they run and told so, waiters are sent home, and the upstream is closed."""
    gateways = [await start(lease_ms=1_500), await start(lease_ms=1_500)]
    running = await hold(gateways[0], upstream, "hello", session_id="s", stream=stream)
    waiting = asyncio.create_task(gateways[0].chat("again", session_id="s", stream=stream))
    await queued(gateways[1], "s")
    assert (await gateways[1].delete("s", "?force=true")).status == 200
    refused, stopped = await waiting, await running
    assert (refused.status, refused.code) == (404, "not_found")
    assert (stopped.status, stopped.code) == (409, "turn_cancelled")
    await upstream.until(lambda up: up.aborted == 1)
    assert upstream.count == 1


async def test_a_forced_deletion_ends_a_stream_with_an_error(start, upstream):
    """E3, H5: a stream under way ends with an error event and without [DONE]."""
    gateway = await start(lease_ms=1_500)
    asking = asyncio.create_task(gateway.chat("hello you", model="gate_mid", session_id="s", stream=True))
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent))
    assert (await gateway.delete("s", "?force=true")).status == 200
    events = (await asking).events()
    assert '"turn_cancelled"' in events[-1]
    assert "[DONE]" not in events
    await upstream.until(lambda up: up.aborted == 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_the_text_is_left(gateway, upstream, store_server, stream):
    """E4: after a deletion no request text, transcript or event is in the store, with or without a key."""
    for key in (None, "k"):
        reply = await gateway.chat(SECRET_TEXT, model="big:50", session_id="s", key=key, stream=stream)
        assert reply.status == 200
    assert SECRET_TEXT in str(dump(store_server))
    await gateway.delete("s")
    left = dump(store_server)
    assert SECRET_TEXT not in str(left)
    assert {entry.kind for entry in left.values()} <= {"hash", "zset", "set"}
    assert [bool(entry.value.get(b"body")) for key, entry in left.items() if b":turn:" in key] == [True]


async def test_a_receipt_outlives_the_session_unless_it_is_dropped_too(gateway, upstream, store_server):
    """E4: what a keyed client received is replayed after the deletion; `?receipts=true` erases that as well."""
    for receipts in ("", "?receipts=true"):
        said = await gateway.chat(f"hello{receipts}", key=f"k{receipts}", body={"seed": 1})
        await gateway.delete(said.session_id, receipts)
        again = await gateway.chat(f"hello{receipts}", key=f"k{receipts}", body={"seed": 1})
        if receipts:
            assert (again.status, again.code) == (409, "idempotency_expired")
            assert b"hello?receipts" not in str(dump(store_server)).encode()
        else:
            assert (again.status, again.body, again.session_id) == (200, said.body, said.session_id)
            assert again.replayed
    assert upstream.count == 2


async def test_many_leftovers_are_erased_before_the_answer(gateway, store_server):
    """E5: however many turns a session had, their records are gone when the deletion is answered."""
    await asyncio.gather(*(gateway.chat("hello") for _ in range(230)))
    session_id = (await gateway.chat("hello")).session_id
    assert len(store_server.cli("KEYS", "*:turn:*")) == 231
    assert (await gateway.delete(session_id)).status == 200
    assert store_server.cli("KEYS", "*:turn:*") == []
    assert store_server.cli("KEYS", "*:leftovers:*") == []
    assert store_server.cli("EXISTS", "coord1:{default}:erasing") == 0


async def test_an_interrupted_erasure_is_finished_by_another_replica(start, start_behind, proxy, store_server):
    """E5: when the deleting replica fails between retirement and erasure, any replica's cleaning goes on with it."""
    other = await start()
    gateway = await start_behind()
    await gateway.chat(SECRET_TEXT, session_id="s")
    proxy.drop_next_reply(b":leftovers:", times=100)  # more than a call is made again within its patience
    failed = await gateway.delete("s")
    assert (failed.status, failed.code) == (503, "storage_unavailable")
    assert (await other.session("s")).status == 404
    await other.coordinator.prune("default")
    assert store_server.cli("KEYS", "*:turn:*") == []
    assert SECRET_TEXT not in str(dump(store_server))


@pytest.mark.parametrize("chosen", [True, False])
async def test_an_idle_conversation_is_dropped_whole(gateway, store_server, chosen):
    """E6: past `session_ttl` a minted id is unknown and a client-chosen one is simply new again."""
    session_id = (await gateway.chat(SECRET_TEXT, session_id="s" if chosen else None)).session_id
    age(store_server, "sessions")
    assert await gateway.coordinator.prune("default") == 1
    assert (await gateway.session(session_id)).status == 404
    again = await gateway.chat("hello", session_id=session_id)
    assert again.status == (200 if chosen else 404)
    if chosen:
        kept = (await gateway.request("GET", session_path(session_id) + "/messages")).json()["data"]
        assert [message["content"] for message in kept] == ["hello", "hello"]
    else:
        assert (await gateway.chat([user(SECRET_TEXT)])).session_id != session_id


async def test_what_is_in_use_is_not_pruned(gateway, upstream, store_server):
    """E6: live turns, waiters and receipts inside `result_ttl` outlive every horizon."""
    first = await hold(gateway, upstream, "hello", session_id="s")
    second = asyncio.create_task(gateway.chat("again", session_id="s", key="k"))
    await queued(gateway, "s")
    age(store_server, "sessions")
    assert await gateway.coordinator.prune("default", 0) == 0
    upstream.release()
    said = [await first, await second]
    assert [reply.status for reply in said] == [200, 200]
    age(store_server, "sessions")
    assert await gateway.coordinator.prune("default", 0) == 1
    assert (await gateway.chat("again", session_id="s", key="k")).body == said[1].body
    assert (await gateway.session("s")).status == 404


@pytest.mark.parametrize("chosen", [True, False])
async def test_of_a_deleted_id_almost_nothing_stays(gateway, store_server, chosen):
    """E6: once pruned a deleted id of ours leaves nothing in the store, one a client chose a single number."""
    session_id = (await gateway.chat("hello", session_id="s" if chosen else None)).session_id
    await gateway.delete(session_id)
    age(store_server, "tombstones")
    assert await gateway.coordinator.prune("default") == 1
    left = dump(store_server)
    assert [entry.kind for entry in left.values()] == (["set"] if chosen else [])
    assert all(len(entry.value) == 1 and next(iter(entry.value)).isdigit() for entry in left.values())
    assert (await gateway.chat("hello", session_id=session_id)).status == 404
