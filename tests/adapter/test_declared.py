"""Chat requests that name their conversation in `X-Hermes-Session-Key`."""

import asyncio
import itertools
import json

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import assistant, dump, hold, queued, session_path, user
from tests.support.waiting import until

HOUR_MS = 3_600_000
JSON_AND_SSE = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


def rest(server, ms):
    """Let all declared conversations rest, as time would."""
    seconds, micros = server.cli("TIME")
    for key in server.cli("KEYS", "*:conversation:d*"):
        server.cli("HSET", key, "active_ms", int(seconds) * 1000 + int(micros) // 1000 - ms)


async def listed(gateway, **options):
    """The ids of all sessions."""
    return {each["id"] for each in (await gateway.request("GET", "/api/sessions?limit=100", **options)).json()["data"]}


@JSON_AND_SSE
async def test_a_key_leads_to_its_conversation(gateway, upstream, stream):
    """C1, C2: whatever the request opens with; key, session and scope are in the answer's headers."""
    said = [await gateway.chat(text, session_key="chat-42", stream=stream) for text in ("hello", "something else")]
    assert len({reply.session_id for reply in said}) == 1
    assert {reply.headers["X-Hermes-Session-Key"] for reply in said} == {"chat-42"}
    assert len({reply.headers["X-Hermes-Scope"] for reply in said}) == 1
    shown = (await gateway.session(said[0].session_id)).json()
    assert (shown["kind"], shown["source"], shown["generation"], shown["turns"]) == ("d", "api_server", 1, 2)
    assert shown["scope"] == said[0].headers["X-Hermes-Scope"]
    assert shown["scope"].startswith("gwk_")


async def test_the_client_keeps_the_history(gateway, upstream):
    """B2: a key on chat selects the session, and the body's messages stay the history."""
    messages = [user("one"), assistant("one"), user("two")]
    reply = await gateway.chat(messages, session_key="chat-42")
    await gateway.chat(messages, session_key="chat-42")
    assert [call.json()["messages"] for call in upstream.calls] == [messages] * 2
    assert (await gateway.session(reply.session_id)).json()["history"] == "client"
    assert (await gateway.request("GET", session_path(reply.session_id) + "/messages")).json()["data"] == []


async def test_all_transcripts_are_kept_when_asked_for(start, upstream):
    """B2: under `transcripts=all` the store keeps a declared conversation's history, and a reset begins a new one."""
    gateway = await start(transcripts="all")
    said = [await gateway.chat(text, session_key="chat-42") for text in ("one", "two")]
    await gateway.request("POST", session_path(said[0].session_id) + "/reset")
    await gateway.chat("three", session_key="chat-42")
    told = [[message["content"] for message in call.json()["messages"]] for call in upstream.calls]
    assert told == [["one"], ["one", "one", "two"], ["three"]]


ADDRESSES = list(itertools.product(["none", "new", "known", "other", "retired", "unknown"], ["none", "new", "known"]))


@JSON_AND_SSE
@pytest.mark.parametrize(("named", "declared"), ADDRESSES, ids=["+".join(each) for each in ADDRESSES])
async def test_every_pair_of_addresses_has_one_answer(gateway, upstream, stream, named, declared):
    """C2, C3, B65: an id goes before a key, a key before the opening; a key is echoed and bound if it led there."""
    opened = await gateway.chat("the opening")
    known = await gateway.chat("hello", session_key="known")
    other = await gateway.chat("hello", session_key="other")
    retired = await gateway.chat("hello", session_id="retired")
    await gateway.delete("retired")
    ids = {"none": None, "new": "new", "known": opened.session_id, "other": other.session_id}
    ids |= {"retired": retired.session_id, "unknown": f"ses_d{24 * '0'}_1_{16 * '0'}"}
    before = await listed(gateway)
    calls = upstream.count
    said = await gateway.chat(
        "the opening",
        session_id=ids[named],
        session_key=None if declared == "none" else declared,
        stream=stream,
    )
    if named in ("retired", "unknown"):
        assert (said.status, said.code, upstream.count) == (404, "not_found", calls)
        assert said.headers["Content-Type"] == "application/json"
        assert said.session_id is None
        assert "X-Hermes-Session-Key" not in said.headers
        assert await listed(gateway) == before
        return
    assert (said.status, upstream.count) == (200, calls + 1)
    if named != "none":
        assert said.session_id == ids[named]
    elif declared == "known":
        assert said.session_id == known.session_id
    elif declared == "none":
        assert said.session_id == opened.session_id
    effective = declared if named == "none" and declared != "none" else None
    assert said.headers.get("X-Hermes-Session-Key") == effective
    assert await listed(gateway) == before | {said.session_id}
    assert (await gateway.session(said.session_id)).json()["scope"] == said.headers["X-Hermes-Scope"]
    # Nobody's binding moved: each key leads where it led, and a key that an id went before leads to something new.
    for key, where in (("known", known), ("other", other)):
        assert (await gateway.chat("hello", session_key=key)).session_id == where.session_id
    fresh = (await gateway.chat("hello", session_key="new")).session_id
    assert (fresh == said.session_id) == (effective == "new")
    assert fresh not in before


async def test_the_pair_is_the_identity(start, upstream):
    """C1: the same key under another source, or of another tenant, is another conversation; a reset moves that one."""
    keys = ApiKeys.load(None, "acme:a,beta:b")
    gateways = [await start(source=source, keys=keys) for source in ("api_server", "studio")]
    said = [
        (gateway, api_key, await gateway.chat("hello", session_key="k", api_key=api_key))
        for gateway in gateways
        for api_key in ("a", "b")
    ]
    assert len({reply.session_id for _, _, reply in said}) == 4
    assert len({reply.headers["X-Hermes-Scope"] for _, _, reply in said}) == 4
    assert {call.json()["prompt_cache_key"] for call in upstream.calls} == {
        reply.headers["X-Hermes-Scope"] for _, _, reply in said
    }
    gateway, api_key, reply = said[0]
    await gateway.request("POST", session_path(reply.session_id) + "/reset", api_key=api_key)
    again = [(await gateway.chat("hello", session_key="k", api_key=key)).session_id for gateway, key, _ in said]
    assert [now == then.session_id for now, (_, _, then) in zip(again, said, strict=True)] == [False, True, True, True]
    refused = await gateways[0].session(said[1][2].session_id, api_key="a")
    assert (refused.status, refused.code) == (404, "not_found")


async def test_crafted_pairs_are_apart(start):
    """C1, B51: ('a|b', 'c') and ('a', 'b|c') share neither a session nor a scope."""
    said = []
    for source, key in (("a|b", "c"), ("a", "b|c"), ("a:1", "2"), ("a", "1:2")):
        said.append(await (await start(source=source)).chat("hello", session_key=key))
    assert len({reply.session_id for reply in said}) == 4
    assert len({reply.headers["X-Hermes-Scope"] for reply in said}) == 4


@pytest.mark.parametrize("key", ["{", "{}", "a}b", "*", "a:lease", "[a]", "a b", "a/b", "é" * 256, "Zoë 🙂", "ses_foo"])
async def test_odd_keys_work(gateway, key):
    """C1, B3, B33: whatever a key is made of, it is echoed as it is, finds its conversation again, and no other."""
    other = await gateway.chat("hello", session_key=key + "" if len(key) == 256 else key + "x")
    said = [await gateway.chat("hello", session_key=key, stream=stream) for stream in (False, True)]
    assert [reply.headers["X-Hermes-Session-Key"] for reply in said] == [key] * 2
    assert len({reply.session_id for reply in said}) == 1
    assert (other.session_id == said[0].session_id) == (len(key) == 256)


@pytest.mark.parametrize("key", ["\t", "a\tb", "\x85", "x" * 257, ".", "..", "a\x9fb"])
async def test_impossible_keys_are_refused(gateway, upstream, store_server, key):
    """C1, B3: 400 before any write, also beside a session id; only a blank one is none."""
    for options in ({}, {"session_id": "s"}, {"stream": True}):
        reply = await gateway.chat("hello", session_key=key, **options)
        if key == "\t":
            assert (reply.status, "X-Hermes-Session-Key" in reply.headers) == (200, False)
        else:
            assert (reply.status, reply.code) == (400, "invalid_session_key")
            assert (upstream.count, dump(store_server)) == (0, {})


async def test_first_requests_on_a_key_share_one_session(start, upstream):
    """C4: twenty at the same moment over two replicas: one id in all answers, no other session is listed."""
    gateways = [await start(), await start()]
    said = await asyncio.gather(
        *(gateways[i % 2].chat(f"hello {i}", session_key="chat-42", stream=i % 3 == 0) for i in range(20))
    )
    assert [reply.status for reply in said] == [200] * 20
    assert await listed(gateways[0]) == {said[0].session_id} == {reply.session_id for reply in said}
    assert upstream.max_overlap == 1


async def test_a_conversation_is_one_however_it_is_named(start, upstream):
    """G1, A7, B58: turns by its key and by its id take turns with each other."""
    gateways = [await start(), await start()]
    opened = await gateways[0].chat("hello", session_key="chat-42")
    by_key = {"session_key": "chat-42"}
    by_id = {"session_id": opened.session_id}
    said = await asyncio.gather(*(gateways[i % 2].chat("x", **(by_key if i % 3 else by_id)) for i in range(20)))
    assert {(reply.status, reply.session_id) for reply in said} == {(200, opened.session_id)}
    assert upstream.max_overlap == 1


@JSON_AND_SSE
async def test_a_replay_tells_the_same(start, upstream, stream):
    """F1, C3: id, key and scope of the first answer, in either form, on any replica, also after a reset."""
    gateways = [await start(), await start()]
    first = await gateways[0].chat("hello", session_key="chat-42", key="k", stream=stream)
    for reset in (False, True):
        if reset:
            await gateways[0].request("POST", session_path(first.session_id) + "/reset")
        for form in (False, True):
            again = await gateways[1].chat("hello", session_key="chat-42", key="k", stream=form)
            assert again.replayed
            for name in ("X-Hermes-Session-Id", "X-Hermes-Session-Key", "X-Hermes-Scope"):
                assert again.headers[name] == first.headers[name]
    assert upstream.count == 1


async def test_who_joins_is_told_the_same(start, upstream):
    """F3, C3: a stream that is followed while it runs has the key and the scope in its headers too."""
    gateways = [await start(), await start()]
    asking = asyncio.create_task(
        gateways[0].chat("hello you", session_key="chat-42", key="k", model="gate_mid", stream=True)
    )
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent))
    body = {"messages": [user("hello you")], "model": "gate_mid", "stream": True}
    sent = {"X-Hermes-Session-Key": "chat-42", "Idempotency-Key": "k"}
    async with gateways[1].http.post(gateways[1].url + "/v1/chat/completions", json=body, headers=sent) as joined:
        assert joined.headers["Idempotency-Replayed"] == "true"
        upstream.release()
        first, events = await asyncio.gather(asking, joined.read())
    for name in ("X-Hermes-Session-Id", "X-Hermes-Session-Key", "X-Hermes-Scope"):
        assert joined.headers[name] == first.headers[name]
    assert events == first.body


async def test_the_key_is_part_of_the_request(start, upstream):
    """F2, C1: the same Idempotency-Key with another key, without one, or under another source is a conflict."""
    gateway, studio = await start(), await start(source="studio")
    first = await gateway.chat("hello", session_key="a", key="k")
    conflicts = [
        await gateway.chat("hello", session_key="b", key="k"),
        await gateway.chat("hello", key="k"),
        await gateway.chat("hello", session_id=first.session_id, key="k"),
        await gateway.chat("hello", session_id=first.session_id, session_key="a", key="k"),
        await studio.chat("hello", session_key="a", key="k"),
    ]
    assert [(reply.status, reply.code) for reply in conflicts] == [(409, "admission_conflict")] * 5
    await gateway.request("POST", session_path(first.session_id) + "/reset")
    after = await gateway.chat("hello again", session_key="a", key="k")
    assert (after.status, after.code) == (409, "admission_conflict")
    assert upstream.count == 1


@JSON_AND_SSE
async def test_a_reset_is_told_to_who_runs_and_who_waits(start, upstream, stream):
    """C7, G4, H1: the running turn and waiters by the key get 409 `stale_generation`, a waiter by the id 404."""
    gateways = [await start(), await start()]
    running = await hold(gateways[0], upstream, "hello", session_key="chat-42", stream=stream)
    [current] = await listed(gateways[0])
    by_key = asyncio.create_task(gateways[1].chat("hello", session_key="chat-42", stream=stream))
    by_id = asyncio.create_task(gateways[1].chat("hello", session_id=current, stream=stream))
    await queued(gateways[0], current, 2)
    reset = await gateways[1].request("POST", session_path(current) + "/reset")
    assert reset.status == 200
    told = await asyncio.gather(running, by_key, by_id)
    assert [(reply.status, reply.code) for reply in told] == [
        (409, "stale_generation"),
        (409, "stale_generation"),
        (404, "not_found"),
    ]
    assert {reply.headers["x-should-retry"] for reply in told} == {"false"}
    await upstream.until(lambda up: up.aborted == 1)
    assert upstream.count == 1
    assert (await gateways[0].chat("hello", session_key="chat-42")).session_id == reset.json()["session_id"]


async def test_a_reset_ends_a_stream_with_an_error(start, upstream):
    """C7, H5: a stream under way ends with `stale_generation` as its last event, without [DONE]."""
    gateway = await start()
    asking = asyncio.create_task(gateway.chat("hello you", model="gate_mid", session_key="chat-42", stream=True))
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent))
    [current] = await listed(gateway)
    await gateway.request("POST", session_path(current) + "/reset")
    events = (await asking).events()
    assert json.loads(events[-1])["error"]["code"] == "stale_generation"
    assert "[DONE]" not in events


async def test_a_rest_begins_a_new_generation(start, upstream, store_server):
    """C8: past `--idle` the key leads to the next session; the old id is 404, never moved; nothing runs for it."""
    gateway = await start(idle_ms=HOUR_MS)
    first = await gateway.chat("hello", session_key="chat-42")
    rest(store_server, 2 * HOUR_MS)
    for stream in (False, True):
        refused = await gateway.chat("hello", session_id=first.session_id, session_key="chat-42", stream=stream)
        assert (refused.status, refused.code) == (404, "not_found")
    assert upstream.count == 1
    second = await gateway.chat("hello", session_key="chat-42")
    assert second.session_id != first.session_id
    assert second.headers["X-Hermes-Scope"] != first.headers["X-Hermes-Scope"]
    assert (await gateway.session(second.session_id)).json()["generation"] == 2


async def test_a_rest_spares_the_turn_that_runs(start, upstream, store_server):
    """C8: a boundary that comes due while a healthy turn runs fences nobody; the next goes on in the session."""
    gateway = await start(idle_ms=HOUR_MS)
    running = await hold(gateway, upstream, "hello", session_key="chat-42")
    rest(store_server, 2 * HOUR_MS)
    [current] = await listed(gateway)
    waiting = asyncio.create_task(gateway.chat("hello", session_key="chat-42"))
    await queued(gateway, current)
    upstream.release()
    said = await asyncio.gather(running, waiting)
    assert [(reply.status, reply.session_id) for reply in said] == [(200, current)] * 2


async def test_a_deleted_or_dropped_conversation_goes_on_counting(gateway):
    """C5, C6, E6: deletion and retention bump: every id and scope under the key is a new one."""
    said = []
    for number in range(6):
        said.append(await gateway.chat("hello", session_key="chat-42"))
        if number % 2:
            assert (await gateway.delete(said[-1].session_id)).status == 200
        else:
            await gateway.coordinator.prune("default", 0)
        assert (await gateway.chat("hello", session_id=said[-1].session_id)).status == 404
        await gateway.coordinator.prune("default", 0)
    assert len({reply.session_id for reply in said}) == 6
    assert len({reply.headers["X-Hermes-Scope"] for reply in said}) == 6
    last = await gateway.chat("hello", session_key="chat-42")
    assert (await gateway.session(last.session_id)).json()["generation"] == 7


async def test_a_total_loss_repeats_nothing(gateway, store_server):
    """J12: after it the key leads to a session and a scope that were never told before; the old id is unknown."""
    first = await gateway.chat("hello", session_key="chat-42")
    store_server.flushall()
    again = await gateway.chat("hello", session_key="chat-42")
    assert again.status == 200
    assert again.session_id != first.session_id
    assert again.headers["X-Hermes-Scope"] != first.headers["X-Hermes-Scope"]
    assert (await gateway.chat("hello", session_id=first.session_id)).status == 404


async def test_a_waiter_that_leaves_opens_nothing(gateway, upstream, store_server):
    """C3, G3: a client that gives up while it waits leaves no trace beside the binding that was there."""
    running = await hold(gateway, upstream, "hello", session_key="chat-42")
    [current] = await listed(gateway)
    before = set(dump(store_server))
    waiting = asyncio.create_task(gateway.chat("hello", session_key="chat-42"))
    await queued(gateway, current)
    waiting.cancel()
    await until(lambda: set(dump(store_server)) == before)
    upstream.release()
    assert (await running).session_id == current
