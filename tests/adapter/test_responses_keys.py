"""`Idempotency-Key` on `/v1/responses`, and bytes that stay as they are, on either store."""

import asyncio
import json
import uuid

import pytest

from tests.adapter.gateway import hold
from tests.adapter.responding import respond, settled, text_of
from tests.support.events import EventReader, events_of

ODD = "\x00 😀 é \u2028 / end"
ODD_PARAMETERS = (
    b'{"type":"object","nothing":null ,"empty":[],"none":{},"nested":[[],{}],"big":9007199254740993,"x":1.10}'
)


def final(reply):
    """The response of an answer in either form."""
    if reply.headers["Content-Type"].startswith("text/event-stream"):
        return events_of(reply.body)[-1].json()["response"]
    return reply.json()


@pytest.mark.parametrize("model", ["ok", "tools", "big:40000"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_an_exact_retry_is_the_same_answer(start, upstream, model, stream, store):
    """F1, F4, B46, B74: byte for byte or event for event, in the other form the same response, with the same headers;
    nothing runs."""
    gateways = [await start(), await start()]
    options = {"model": model, "store": store, "key": "k", "session_key": "chat-42"}
    first = await respond(gateways[0], "one two", stream=stream, **options)
    assert (first.status, first.replayed) == (200, False)
    for gateway in gateways:
        for form in (stream, not stream):
            again = await respond(gateway, "one two", stream=form, **options)
            assert (again.status, again.replayed, final(again)) == (200, True, final(first))
            assert form != stream or again.body == first.body
            assert again.headers["x-should-retry"] == "false"
            for name in ("X-Hermes-Session-Id", "X-Hermes-Session-Key", "X-Hermes-Scope"):
                assert again.headers[name] == first.headers[name], (form, name)
    assert upstream.count == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_joins_the_running_turn(start, upstream, stream):
    """F3, H2: ten on two replicas while it runs, in both forms: one turn, one response, event for event."""
    gateways = [await start(), await start()]
    options = {"model": "gate_mid", "key": "k"}
    first = asyncio.create_task(respond(gateways[0], "one two", stream=stream, **options))
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent))
    joining = [
        asyncio.create_task(respond(gateways[n % 2], "one two", stream=n % 3 == 0, **options)) for n in range(10)
    ]
    await asyncio.wait(joining, timeout=0.2)
    assert not any(task.done() for task in joining)
    upstream.release()
    made = await first
    replies = await asyncio.gather(*joining)
    assert [final(reply) for reply in replies] == [final(made)] * 10
    assert all(reply.replayed for reply in replies)
    assert {reply.headers["X-Hermes-Scope"] for reply in replies} == {made.headers["X-Hermes-Scope"]}
    if stream:
        assert {reply.body for reply in replies if reply.body.startswith(b"id: ")} == {made.body}
    assert upstream.count == 1


@pytest.mark.parametrize("mode", ["status:500", "truncated", "malformed", "reset_before"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_the_keys_answer(start, upstream, mode, stream):
    """F6: what failed after the dispatch is told again, in either form, and never run again."""
    gateways = [await start(), await start()]
    first = await respond(gateways[0], "one two", model=mode, stream=stream, key="k")
    for gateway in gateways:
        again = await respond(gateway, "one two", model=mode, stream=stream, key="k")
        assert (again.status, again.body, again.replayed) == (first.status, first.body, True)
        other = await respond(gateway, "one two", model=mode, stream=not stream, key="k")
        assert other.replayed
        assert b"upstream_failed" in other.body
    assert upstream.count == 1


async def test_a_replay_is_served_while_draining(start, upstream):
    """F10, J6: what is recorded is told; what is new, or would have to be waited for, is not let in."""
    leaving, staying = await start(), await start()
    made = await respond(leaving, "one", key="k")
    chained = await respond(leaving, "two", key="l", previous_response_id=made.json()["id"])
    holding = await hold(staying, upstream, "held", session_id="s")
    leaving.coordinator.drain()
    assert (await respond(leaving, "one", key="k")).body == made.body
    again = await respond(leaving, "two", key="l", previous_response_id=made.json()["id"])
    assert (again.body, again.replayed) == (chained.body, True)
    for options in ({}, {"session_id": "s"}, {"background": True}, {"previous_response_id": made.json()["id"]}):
        for stream in (False, True):
            refused = await respond(leaving, "new", stream=stream, **options)
            assert (refused.status, refused.code) == (503, "gateway_draining")
    upstream.release()
    await holding
    assert (await leaving.request("GET", f"/v1/responses/{made.json()['id']}")).json() == made.json()


@pytest.mark.parametrize("store", ["real", "embedded"])
async def test_what_is_said_stays_as_it_is(start, upstream, store):
    """J4, H7: `[]`, `{}`, null, 17-digit integers, NUL and emoji pass to the upstream and back, and are kept, replayed
    and followed on unchanged, on a server and embedded."""
    gateway = await start(**({"store": f"embedded://{uuid.uuid4().hex}"} if store == "embedded" else {}))
    body = (
        b'{"model":"ok","input":%s,"metadata":{"odd":%s},"tools":[{"type":"function","name":"f","parameters":%s}]}'
    ) % (json.dumps(ODD).encode(), json.dumps(ODD).encode(), ODD_PARAMETERS)
    for _ in range(2):
        headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
        async with gateway.http.post(f"{gateway.url}/v1/responses", data=body, headers=headers) as response:
            answer = await response.read()
        made = json.loads(answer)
        assert (text_of(made), made["metadata"]) == (ODD, {"odd": ODD})
        assert made["tools"][0]["parameters"] == json.loads(ODD_PARAMETERS)
    sent = upstream.calls[0].body
    assert ODD_PARAMETERS.replace(b" ,", b",") in sent.replace(b" ,", b",")
    assert json.loads(sent)["messages"][0]["content"] == ODD
    path = f"/v1/responses/{made['id']}"
    assert (await gateway.request("GET", path)).json() == made
    listed = (await gateway.request("GET", path + "/input_items")).json()["data"]
    assert listed[0]["content"][0]["text"] == ODD
    assert events_of((await gateway.request("GET", path + "?stream=true")).body)[-1].json()["response"] == made
    await respond(gateway, "next", previous_response_id=made["id"])
    assert [message["content"] for message in upstream.calls[1].json()["messages"]] == [ODD, ODD, "next"]
    odd = await respond(gateway, "hello", model="weird", stream=True, key="w")
    again = await respond(gateway, "hello", model="weird", stream=True, key="w")
    assert (again.body, text_of(final(odd))) == (odd.body, "a😀\x00z")
    assert upstream.count == 3


async def test_an_embedded_store_serves_the_same(start, upstream):
    """I1, I3, H2: background work, its stream, and chains, without a server."""
    gateway = await start(store=f"embedded://{uuid.uuid4().hex}")
    asked = {"model": "gate_mid", "input": "one two", "background": True, "stream": True}
    async with EventReader(gateway.http, "POST", gateway.url + "/v1/responses", json=asked) as stream:
        begun = await stream.take(5)
    upstream.release()
    path = f"/v1/responses/{begun[0].json()['response']['id']}"
    assert text_of(await settled(gateway, path)) == "one two"
    rest = events_of((await gateway.request("GET", path + "?stream=true&starting_after=4")).body)
    assert [event.number for event in [*begun, *rest]] == [*range(10)]
    chained = await respond(gateway, "more", previous_response_id=begun[0].json()["response"]["id"])
    assert chained.status == 200
