"""`Idempotency-Key` on chat completions: one key, one turn, one answer."""

import asyncio
import json
import time

import pytest

from coordinator.scripts import load
from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import assistant, dump, end_lease, hold, queued, user
from tests.support.monitor import Monitor
from tests.support.tcp import TcpService
from tests.support.waiting import until

USAGE = {"stream_options": {"include_usage": True}}


def said(reply):
    """What an answer says, in either form: ids, text, tool calls, finish reason and usage."""
    if not reply.headers["Content-Type"].startswith("text/event-stream"):
        body = reply.json()
        (choice,) = body["choices"]
        message = choice["message"]
        made = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
        return body["id"], message["content"] or "", made, choice["finish_reason"], body.get("usage")
    chunks = [json.loads(event) for event in reply.events() if event != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    calls: dict[int, dict[str, str]] = {}
    for delta in (part for choice in choices for part in choice["delta"].get("tool_calls") or []):
        call = calls.setdefault(delta["index"], {"id": delta.get("id"), "name": "", "arguments": ""})
        for name in ("name", "arguments"):
            call[name] += delta["function"].get(name) or ""
    listed = [(call["id"], {"name": call["name"], "arguments": call["arguments"]}) for call in calls.values()]
    (finish,) = {choice["finish_reason"] for choice in choices} - {None}
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return chunks[0]["id"], reply.text(), listed, finish, usage[0] if usage else None


@pytest.mark.parametrize("model", ["ok", "tools", "big:40000"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_exact_retry_is_the_same_answer(gateway, upstream, model, stream):
    """F1: a retry gets the answer as its client received it, byte for byte or event for event, and nothing runs."""
    first = await gateway.chat("Grüße an alle", model=model, stream=stream, key="k")
    again = await gateway.chat("Grüße an alle", model=model, stream=stream, key="k")
    assert (first.status, first.replayed, again.replayed) == (200, False, True)
    assert again.body == first.body
    for name in ("X-Hermes-Session-Id", "Content-Type"):
        assert again.headers[name] == first.headers[name]
    assert again.headers["x-should-retry"] == "false"
    assert upstream.count == 1


@pytest.mark.parametrize("model", ["ok", "tools", "big:40000"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", [{}, USAGE])
async def test_a_stored_answer_is_served_in_the_other_form(gateway, upstream, model, stream, usage):
    """F1, F4: asked as JSON or as SSE, whichever it was not: same content, tool calls, ids, usage and finish reason."""
    first = await gateway.chat("Grüße an alle", model=model, stream=stream, body=usage, key="k")
    other = await gateway.chat("Grüße an alle", model=model, stream=not stream, body=usage, key="k")
    assert (other.status, other.replayed, upstream.count) == (200, True, 1)
    if usage or stream:
        assert said(other) == said(first)
    else:  # a stream tells the usage only when asked to
        assert said(other) == (*said(first)[:4], None)
    if not stream:
        assert other.events()[-1] == "[DONE]"


async def test_a_stream_is_replayed_after_its_log_is_gone(gateway, upstream, store_server):
    """F1: without the event log the stream is told again from the answer."""
    first = await gateway.chat("one two", model="tools", stream=True, body=USAGE, key="k")
    (log,) = store_server.cli("KEYS", "*:events:*")
    store_server.cli("DEL", log)
    again = await gateway.chat("one two", model="tools", stream=True, body=USAGE, key="k")
    assert again.replayed
    assert said(again) == said(first)
    assert again.events()[-1] == "[DONE]"
    assert upstream.count == 1


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_retry_names_the_original_session_also_when_it_is_gone(gateway, upstream, session_id):
    """F1, F2: after a deletion, and after pruning, the key still leads to its answer and the id it had."""
    first = await gateway.chat("hello", session_id=session_id, key="k")
    await gateway.delete(first.session_id)
    moved = None if session_id else (await gateway.chat("hello")).session_id
    for _ in range(2):
        again = await gateway.chat("hello", session_id=session_id, key="k")
        assert (again.status, again.body, again.session_id, again.replayed) == (200, first.body, first.session_id, True)
        conflict = await gateway.chat("hello", body={"n": 1}, session_id=session_id, key="k")
        assert (conflict.status, conflict.code) == (409, "admission_conflict")
        await gateway.coordinator.prune("default", 0)
    assert upstream.count == (1 if session_id else 2)
    assert moved != first.session_id


async def in_state(state, start, upstream, server):
    """A key used for 'hello', its turn in that state."""
    gateway = await start(lease_ms=1_500)
    if state in ("running", "cancelled", "interrupted"):
        asking = await hold(gateway, upstream, "hello", session_id="s", key="k", body={"model": "m"})
        if state == "cancelled":
            await gateway.delete("s", "?force=true")
            await asking
        if state == "interrupted":
            end_lease(server)
            await gateway.chat("hello", session_id="s", key="k", body={"model": "m"})
        return gateway, asking
    if state == "failed":
        upstream.upcoming.append("status:500")
    await gateway.chat("hello", session_id="s", key="k", body={"model": "m"})
    if state == "expired":
        server.cli("DEL", *server.cli("KEYS", "*:turn:*"))
    if state in ("deleted", "pruned"):
        await gateway.delete("s")
    if state == "pruned":
        await gateway.coordinator.prune("default", 0)
    return gateway, None


@pytest.mark.parametrize(
    "state", ["running", "completed", "failed", "cancelled", "interrupted", "expired", "deleted", "pruned"]
)
async def test_another_request_under_a_used_key_is_a_conflict(start, upstream, store_server, state):
    """F2: another body, another session or none is 409 `admission_conflict` in every state after the grant."""
    upstream.upcoming.extend(["gate"] if state in ("running", "cancelled", "interrupted") else [])
    gateway, asking = await in_state(state, start, upstream, store_server)
    count = upstream.count
    others: list[dict] = [
        {"messages": "hello!", "session_id": "s"},
        {"messages": "hello", "session_id": "s", "body": {"model": "other"}},
        {"messages": "hello", "session_id": "s", "body": {"model": "m", "tools": []}},
        {"messages": [user("hello"), assistant("hello"), user("more")], "session_id": "s"},
        {"messages": "hello", "session_id": "t"},
        {"messages": "hello"},
    ]
    for stream in (False, True):
        for other in others:
            options = {"body": {"model": "m"}, "stream": stream, **other}
            refused = await gateway.chat(options.pop("messages"), key="k", **options)
            assert (refused.status, refused.code) == (409, "admission_conflict"), other
            assert refused.headers["x-should-retry"] == "false"
            assert refused.session_id is None
    assert upstream.count == count
    upstream.release()
    if asking:
        await asking


async def test_form_and_spelling_do_not_make_another_request(gateway, upstream, http):
    """F2: order of members, white space, `stream` and `stream_options` leave the request the same."""
    bodies = [
        b'{"model":"ok","messages":[{"role":"user","content":"hi"}]}',
        b'{ "messages" : [ {"content":"h\\u0069", "role":"user"} ],\n "model":"ok" }',
        b'{"model":"ok","stream":true,"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":true}}',
    ]
    replies = []
    for body in bodies:
        headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        async with http.post(f"{gateway.url}/v1/chat/completions", data=body, headers=headers) as response:
            replies.append((response.status, response.headers.get("Idempotency-Replayed")))
            await response.read()
    assert replies == [(200, None), (200, "true"), (200, "true")]
    assert upstream.count == 1


async def test_a_key_spent_on_one_address_stays_spent(gateway, upstream):
    """F2: the address counts as it was sent: naming the very session of a header-less request is another request."""
    first = await gateway.chat("hello", key="k")
    named = await gateway.chat("hello", session_id=first.session_id, key="k")
    assert (named.status, named.code) == (409, "admission_conflict")
    assert (await gateway.chat("hello", key="k")).body == first.body
    assert upstream.count == 1


ROUTES = {
    "/v1/chat/completions": {"model": "ok", "messages": [user("hello")]},
    "/v1/responses": {"model": "ok", "input": "hello"},
    "/v1/runs": {"model": "ok", "input": "hello"},
}


@pytest.mark.parametrize("route", ROUTES)
async def test_a_key_spent_on_one_route_stays_spent(gateway, upstream, route):
    """F2: on every other route the same key is 409 `admission_conflict`, and nothing runs."""
    first = await gateway.request("POST", route, json=ROUTES[route], key="k")
    assert first.status in (200, 202)
    for other in ROUTES.keys() - {route}:
        refused = await gateway.request("POST", other, json=ROUTES[other], key="k")
        assert (refused.status, refused.code) == (409, "admission_conflict")
    await upstream.until(lambda up: up.count == 1 and up.running == 0)


async def test_keys_belong_to_a_tenant(start, upstream):
    """F1: the same key of two tenants is two keys."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one,beta:two"))
    first, second = [await gateway.chat(text, key="k", api_key=api) for text, api in (("a", "one"), ("b", "two"))]
    assert [first.text(), second.text(), second.replayed, upstream.count] == ["a", "b", False, 2]


@pytest.mark.parametrize("first_stream", [False, True])
@pytest.mark.parametrize("joiner_stream", [False, True])
async def test_a_retry_joins_the_running_turn(start, upstream, first_stream, joiner_stream):
    """F3, F4: on any replica it waits for the running turn and gets the same answer in the form it asks for."""
    gateways = [await start(), await start()]
    running = await hold(gateways[0], upstream, "hello you", key="k", stream=first_stream, body=USAGE)
    joining = [
        asyncio.create_task(gateway.chat("hello you", model="gate", key="k", stream=joiner_stream, body=USAGE))
        for gateway in gateways
    ]
    await asyncio.wait(joining, timeout=0.1)
    assert not any(task.done() for task in joining)
    upstream.release()
    first, *joined = [await running, *[await task for task in joining]]
    assert [reply.status for reply in joined] == [200, 200]
    assert [said(reply) for reply in joined] == [said(first)] * 2
    assert [reply.session_id for reply in joined] == [first.session_id] * 2
    if first_stream == joiner_stream:
        assert [reply.body for reply in joined] == [first.body] * 2
    assert (first.replayed, [reply.replayed for reply in joined]) == (False, [True, True])
    assert upstream.count == 1


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_identical_requests_at_once_run_once(start, upstream, session_id):
    """F1, F3: 20 identical keyed requests over two replicas are one turn, whose end all are told at once; no 5xx."""
    gateways = [await start(poll_ms=8_000, vouch_ms=24_000) for _ in range(2)]  # looking again by itself is too late
    for number in range(5):
        asked = (gateways[i % 2].chat(f"race {number}", key=f"k{number}", session_id=session_id) for i in range(20))
        began = time.monotonic()
        replies = await asyncio.gather(*asked)
        assert time.monotonic() - began < 4
        assert [reply.status for reply in replies] == [200] * 20
        assert len({reply.body for reply in replies}) == 1
        assert sum(not reply.replayed for reply in replies) == 1
    assert upstream.count == 5


async def test_identical_requests_may_wait_side_by_side(gateway, upstream, store_server):
    """F6: a key is not taken while its request waits; the first that is granted takes it, the rest replay."""
    running = await hold(gateway, upstream, "hello", session_id="s")
    waiting = [asyncio.create_task(gateway.chat("next", session_id="s", key="k")) for _ in range(3)]
    await queued(gateway, "s", 3)
    assert store_server.cli("KEYS", "*:idempotency:*") == []
    upstream.release()
    await running
    replies = [await task for task in waiting]
    assert [reply.status for reply in replies] == [200] * 3
    assert len({reply.body for reply in replies}) == 1
    assert upstream.count == 2


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


class Refusing(TcpService):
    """An upstream that answers each call with a refusal, once it is allowed to."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.gate = asyncio.Event()

    async def serve(self, reader, writer):
        """Read one request, wait, refuse."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        self.calls += 1
        await self.gate.wait()
        body = (
            b'{"error":{"message":"too many","type":"x","param":null,"code":"rate_limit_exceeded","call":%d}}'
            % self.calls
        )
        writer.write(b"HTTP/1.1 429 Slow Down\r\nContent-Type: application/json\r\nRetry-After: 9\r\n")
        writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()


async def test_those_who_joined_get_the_refusal_and_then_the_key_is_free(start):
    """F6: a refusal of the upstream is told to all who joined; the next request with the key asks again."""
    async with Refusing() as refusing:
        gateway = await start(upstream=f"http://127.0.0.1:{refusing.port}/v1")
        asking = [asyncio.create_task(gateway.chat("hello", key="k", stream=i == 2)) for i in range(4)]
        await until(lambda: refusing.calls == 1)
        await asyncio.wait(asking, timeout=0.1)
        refusing.gate.set()
        replies = [await task for task in asking]
        assert {(reply.status, reply.body, reply.headers["Retry-After"]) for reply in replies} == {
            (429, replies[0].body, "9")
        }
        assert refusing.calls == 1
        assert (await gateway.chat("hello", key="k")).json()["error"]["call"] == 2


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
