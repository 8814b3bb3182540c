"""`Idempotency-Key` on chat completions: the same request again, and another under the same key."""

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import assistant, end_lease, hold, said, user

USAGE = {"stream_options": {"include_usage": True}}


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
