"""`/v1/responses`: what is made, told as JSON and as events, kept, and given back by any replica."""

import asyncio
import json

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import dump, session_path
from tests.adapter.responding import GONE, in_state, respond, said, text_of
from tests.support.events import events_of, names, numbers
from tests.support.waiting import until

TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]
SECRET_TEXT = "the-text-that-must-go"


async def test_a_response_is_what_openai_clients_expect(gateway, upstream):
    """I1: a response object with its output, usage, metadata and session; the upstream gets a chat completion."""
    reply = await respond(gateway, "hello you", instructions="be brief", metadata={"a": "b"}, temperature=0.5)
    assert reply.status == 200
    body = reply.json()
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "ok")
    assert (body["metadata"], body["instructions"], body["temperature"]) == ({"a": "b"}, "be brief", 0.5)
    assert (text_of(body), body["output"][0]["role"]) == ("hello you", "assistant")
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"] == 6
    assert body["conversation"] == {"id": reply.session_id}
    assert reply.headers["x-should-retry"] == "false"
    call = upstream.calls[0]
    assert call.path == "/v1/chat/completions"
    assert [(message["role"], message["content"]) for message in call.json()["messages"]] == [
        ("system", "be brief"),
        ("user", "hello you"),
    ]


async def test_input_may_be_items(gateway, upstream):
    """I1: messages of several roles and parts become the messages of a chat."""
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"role": "user", "content": "three"},
    ]
    assert text_of((await respond(gateway, items)).json()) == "three"
    roles = [message["role"] for message in upstream.calls[0].json()["messages"]]
    assert (roles, said(upstream)) == (["developer", "user", "assistant", "user"], ["be brief", "one", "two", "three"])


async def test_a_stream_tells_the_same_response(start, upstream):
    """I1, H1, H3: events in OpenAI's order, numbered without gaps; the last has what any replica gives back."""
    gateways = [await start(), await start()]
    reply = await respond(gateways[0], "one two", stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.session_id
    events = events_of(reply.body)
    assert names(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert numbers(events) == [event.json()["sequence_number"] for event in events] == [*range(len(events))]
    assert [event.json()["type"] for event in events] == names(events)
    final = events[-1].json()["response"]
    assert (final["usage"]["output_tokens"], text_of(final)) == (2, "one two")
    assert (await gateways[1].request("GET", f"/v1/responses/{final['id']}")).json() == final


async def test_a_response_is_read_on_every_replica(start, upstream):
    """I1, I2: what was answered is given back as it is, by the one that did not make it too."""
    gateways = [await start(), await start()]
    made = (await respond(gateways[0], "hello", metadata={"a": "b"})).json()
    for gateway in gateways:
        assert (await gateway.request("GET", f"/v1/responses/{made['id']}")).json() == made
    assert upstream.count == 1


async def test_a_whole_answer_can_be_read_as_a_stream(start, upstream):
    """I1, H2: what was made as JSON is told as events that end in the very same response; also while it is made."""
    gateways = [await start(), await start()]
    asking = asyncio.create_task(respond(gateways[0], "one two", model="gate"))
    await upstream.until(lambda up: up.running == 1)
    (turn,) = await gateways[0].coordinator.running_turns("default")
    path = f"/v1/responses/resp_{turn.cid}_{turn.turn}?stream=true"
    watching = asyncio.create_task(gateways[1].request("GET", path))
    await asyncio.sleep(0.1)
    upstream.release()
    made = (await asking).json()
    for reply in (await watching, await gateways[1].request("GET", path)):
        events = events_of(reply.body)
        assert numbers(events) == [*range(len(events))]
        assert (events[0].name, events[-1].name) == ("response.created", "response.completed")
        assert events[-1].json()["response"] == made
    gone = await gateways[1].request("GET", path + "&starting_after=2")
    assert (gone.status, gone.code) == (410, "events_lost")


async def test_the_input_can_be_listed(gateway):
    """I1: the items that were asked, each under an id of its own."""
    items = [{"role": "user", "content": "one"}, {"type": "function_call_output", "call_id": "c", "output": "two"}]
    made = (await respond(gateway, items)).json()
    listed = (await gateway.request("GET", f"/v1/responses/{made['id']}/input_items")).json()
    assert [item["type"] for item in listed["data"]] == ["message", "function_call_output"]
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
    ids = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (*ids, False)
    assert len(set(ids)) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_stored_is_nowhere(gateway, upstream, store_server, stream):
    """I1: `store: false` is answered, and neither read, deleted, stopped nor continued; its answer is not kept."""
    reply = await respond(gateway, "hello", model=f"{SECRET_TEXT}", store=False, stream=stream)
    made = events_of(reply.body)[-1].json()["response"] if stream else reply.json()
    path = f"/v1/responses/{made['id']}"
    replies = [
        await gateway.request("GET", path),
        await gateway.request("GET", path + "?stream=true"),
        await gateway.request("GET", path + "/input_items"),
        await gateway.request("DELETE", path),
        await gateway.request("POST", path + "/cancel"),
        await respond(gateway, "more", previous_response_id=made["id"]),
    ]
    assert [(reply.status, reply.code) for reply in replies] == [(404, "not_found")] * len(replies)
    assert upstream.count == 1
    assert not any(SECRET_TEXT in repr(entry) for entry in dump(store_server).values())
    assert (await gateway.session(reply.session_id)).json()["turns"] == 1


async def test_a_deleted_response_is_gone_and_its_session_goes_on(start, upstream):
    """I1: 200 once, then 404 for all that names it; those that followed on it stay."""
    gateways = [await start(), await start()]
    first = (await respond(gateways[0], "one")).json()
    second = (await respond(gateways[0], "two", previous_response_id=first["id"])).json()
    path = f"/v1/responses/{first['id']}"
    deleted = await gateways[1].request("DELETE", path)
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    for gateway in gateways:
        replies = [
            await gateway.request("GET", path),
            await gateway.request("DELETE", path),
            await respond(gateway, "more", previous_response_id=first["id"]),
        ]
        assert [(reply.status, reply.code) for reply in replies] == [(404, "not_found")] * 3
    third = await respond(gateways[1], "three", previous_response_id=second["id"])
    assert (third.status, said(upstream)) == (200, ["one", "one", "two", "two", "three"])


async def test_a_deleted_response_stays_its_keys_receipt(gateway, upstream):
    """I1, F1: the exact retry is answered as before; everybody else finds nothing."""
    made = await respond(gateway, "one", key="k")
    assert (await gateway.request("DELETE", f"/v1/responses/{made.json()['id']}")).status == 200
    again = await respond(gateway, "one", key="k")
    assert (again.body, again.replayed, upstream.count) == (made.body, True, 1)
    assert (await gateway.request("GET", f"/v1/responses/{made.json()['id']}")).status == 404


async def test_a_response_under_way_is_not_deleted(gateway, upstream):
    """I1, E3: it is busy, and the client is told to come back."""
    made = (await respond(gateway, "hello", model="gate", background=True)).json()
    await in_state(gateway, f"/v1/responses/{made['id']}", "in_progress")
    refused = await gateway.request("DELETE", f"/v1/responses/{made['id']}")
    assert (refused.status, refused.code) == (409, "session_busy")
    assert int(refused.headers["Retry-After"]) >= 1
    upstream.release()


@pytest.mark.parametrize("stream", [False, True])
async def test_function_calls_go_round(start, upstream, stream):
    """I1: tools go to the upstream, calls come out as items, their outputs go in at another replica by the chain."""
    gateways = [await start(), await start()]
    reply = await respond(gateways[0], "weather?", model="tools", tools=TOOLS, stream=stream)
    made = events_of(reply.body)[-1].json()["response"] if stream else reply.json()
    assert upstream.calls[0].json()["tools"][0]["function"]["name"] == "get_weather"
    calls = [item for item in made["output"] if item["type"] == "function_call"]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("get_weather", {"city": "Zürich", "days": 3}),
        ("get_time", {"zone": "UTC"}),
    ]
    if stream:
        told = "".join(e.json()["delta"] for e in events_of(reply.body) if e.name.endswith("arguments.delta"))
        assert told == "".join(call["arguments"] for call in calls)
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": f"it is {call['name']}"}
        for call in calls
    ]
    done = await respond(gateways[1], outputs, previous_response_id=made["id"], tools=TOOLS, stream=stream)
    assert done.status == 200
    user, assistant, *results = upstream.calls[1].json()["messages"]
    assert user["content"] == "weather?"
    assert [call["id"] for call in assistant["tool_calls"]] == [call["call_id"] for call in calls]
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [c["arguments"] for c in calls]
    assert [(each["role"], each["tool_call_id"], each["content"]) for each in results] == [
        ("tool", call["call_id"], f"it is {call['name']}") for call in calls
    ]


@pytest.mark.parametrize("mode", ["status:400", "status:429"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_upstream_is_told_and_nothing_is_made(gateway, upstream, mode, stream):
    """F6, H1: its own status as plain JSON, before any event; the key is free again."""
    upstream.upcoming.append(mode)
    refused = await respond(gateway, "hello", stream=stream, key="k")
    assert refused.status == int(mode[-3:])
    assert refused.headers["Content-Type"].startswith("application/json")
    again = await respond(gateway, "hello", stream=stream, key="k")
    assert (again.status, again.replayed, upstream.count) == (200, False, 2)


@pytest.mark.parametrize("mode", ["truncated", "reset_mid", "malformed"])
async def test_a_failure_within_a_stream_is_its_last_event(start, upstream, mode):
    """H5, G8: `response.failed` ends it, and whoever asks later, at any replica, is told the same."""
    gateways = [await start(), await start()]
    events = events_of((await respond(gateways[0], "one two", model=mode, stream=True)).body)
    assert events[-1].name == "response.failed"
    assert numbers(events) == [*range(len(events))]
    told = events[-1].json()["response"]
    assert (told["status"], told["error"]["code"]) == ("failed", "upstream_failed")
    path = f"/v1/responses/{told['id']}"
    kept = (await gateways[1].request("GET", path)).json()
    assert (kept["status"], kept["error"]) == ("failed", told["error"])
    assert events_of((await gateways[1].request("GET", path + "?stream=true")).body) == events
    chained = await respond(gateways[1], "more", previous_response_id=told["id"])
    assert (chained.status, upstream.count) == (404, 1)


async def test_a_client_that_leaves(gateway, upstream, store_server):
    """H4: a stored response is finished without its client, one that nobody may fetch is ended."""
    for store in (True, False):
        asking = asyncio.create_task(respond(gateway, "hello", model="gate", store=store, session_id=f"s{store}"))
        await upstream.until(lambda up: up.running == 1)
        asking.cancel()
        await asyncio.wait([asking])
        if store:
            await asyncio.sleep(0.4)  # longer than it takes to notice
            upstream.release()
        await upstream.until(lambda up: up.running == 0)
        assert upstream.aborted == (not store)
        await until(lambda: store_server.cli("ZCARD", "coord1:{default}:running") == 0)
        kept = (await gateway.request("GET", session_path(f"s{store}") + "/messages")).json()["data"]
        assert [message["content"] for message in kept] == (["hello", "hello"] if store else [])


async def test_the_upstream_is_told_the_scope(gateway, upstream):
    """D4, D5: the same for every response of a chain, another for another chain; the client's own is left alone."""
    first = await respond(gateway, "one")
    await respond(gateway, "two", previous_response_id=first.json()["id"])
    await respond(gateway, "three")
    await respond(gateway, "four", prompt_cache_key="mine")
    keys = [call.json()["prompt_cache_key"] for call in upstream.calls]
    assert keys[0] == keys[1] == first.headers["X-Hermes-Scope"] != keys[2]
    assert keys[3] == "mine"


async def test_another_tenants_response_is_unknown(start, upstream):
    """B4: the same answer, to the byte, as for an id that never was, on every route, and no upstream call."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one,beta:two"))
    theirs = (await respond(gateway, "hello", api_key="one")).json()["id"]
    never = f"resp_m{24 * '0'}_{32 * '0'}"
    for method, suffix in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("DELETE", ""),
        ("POST", "/cancel"),
    ):
        bodies = set()
        for wanted in (theirs, never, "resp_{}", "%00", "x" * 300, GONE):
            reply = await gateway.request(method, f"/v1/responses/{wanted}{suffix}", api_key="two")
            assert (reply.status, reply.code) == (404, "not_found"), (method, suffix, wanted)
            bodies.add(reply.body)
        assert len(bodies) == 1
    assert upstream.count == 1
