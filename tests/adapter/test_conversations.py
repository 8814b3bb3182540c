"""`/v1/conversations`: sessions, as clients of the Responses API know them."""

import asyncio

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import dump, hold, user
from tests.adapter.responding import GONE, respond, run, said, settled
from tests.support.events import events_of

SECRET_TEXT = "the-text-that-must-go"
PATH = "/v1/conversations"


async def create(gateway, *, api_key=None, **fields):
    """A new conversation."""
    reply = await gateway.request("POST", PATH, json=fields, api_key=api_key)
    assert reply.status == 200, reply.body
    return reply.json()


async def texts(gateway, conversation, query=""):
    """What was said in it."""
    listed = (await gateway.request("GET", f"{PATH}/{conversation}/items{query}")).json()
    return [part["text"] for item in listed["data"] for part in item["content"]]


async def test_a_conversation_lives_on_every_replica(start, upstream, store_server):
    """I1, A3: created, read, changed and deleted, each at another replica; then it is unknown for good."""
    gateways = [await start(), await start()]
    made = await create(gateways[0], metadata={"a": "b"})
    assert (made["object"], made["metadata"], made["id"][:5]) == ("conversation", {"a": "b"}, "ses_m")
    path = f"{PATH}/{made['id']}"
    assert (await gateways[1].request("GET", path)).json() == made
    changed = (await gateways[1].request("POST", path, json={"metadata": {"c": "d"}})).json()
    assert changed == made | {"metadata": {"c": "d"}}
    assert (await gateways[0].request("GET", path)).json() == changed
    deleted = await gateways[0].request("DELETE", path)
    assert deleted.json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    for gateway in gateways:
        for method, suffix, body in (
            ("GET", "", None),
            ("POST", "", {"metadata": {}}),
            ("DELETE", "", None),
            ("GET", "/items", None),
            ("POST", "/items", {"items": [user("more")]}),
        ):
            reply = await gateway.request(method, path + suffix, json=body)
            assert (reply.status, reply.code) == (404, "not_found")
        assert (await respond(gateway, "more", conversation=made["id"])).code == "not_found"
    assert upstream.count == 0


async def test_it_is_created_with_nothing_at_all(gateway):
    """I1: an empty body, or none, makes an empty conversation of its own each time."""
    empty = await create(gateway)
    async with gateway.http.post(gateway.url + PATH) as response:
        other = await response.json()
    assert (empty["metadata"], other["metadata"]) == ({}, {})
    assert empty["id"] != other["id"]
    assert await texts(gateway, empty["id"]) == []


async def test_its_items_are_the_history(start, upstream):
    """I1, B2: those it began with, those added, and what responses, runs and chats said in it, in order."""
    gateways = [await start(), await start()]
    items = [user("one"), {"role": "assistant", "content": "two"}]
    made = (await create(gateways[0], items=items))["id"]
    added = await gateways[1].request("POST", f"{PATH}/{made}/items", json={"items": [user("three")]})
    assert [item["content"][0]["text"] for item in added.json()["data"]] == ["three"]
    reply = await respond(gateways[0], "four", conversation=made)
    assert (reply.session_id, reply.json()["conversation"]) == (made, {"id": made})
    assert said(upstream) == ["one", "two", "three", "four"]
    streamed = await respond(gateways[1], "five", conversation={"id": made}, stream=True)
    assert events_of(streamed.body)[-1].json()["response"]["conversation"] == {"id": made}
    ran = (await run(gateways[0], "six", conversation=made)).json()
    await settled(gateways[1], f"/v1/runs/{ran['id']}")
    assert (await gateways[1].chat("seven", session_id=made)).status == 200
    every = ["one", "two", "three", *(text for text in ("four", "five", "six", "seven") for _ in "qa")]
    assert said(upstream) == every[:-1]
    for gateway in gateways:
        assert await texts(gateway, made) == every
        assert await texts(gateway, made, "?order=desc") == every[::-1]
    listed = (await gateways[0].request("GET", f"{PATH}/{made}/items")).json()
    ids = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (ids[0], ids[-1], False)
    assert len(set(ids)) == len(ids)


async def test_a_response_without_input_answers_what_was_added(gateway, upstream):
    """I1: where the conversation says it all."""
    made = (await create(gateway, items=[user("what now?")]))["id"]
    assert (await respond(gateway, [], conversation=made)).status == 200
    assert said(upstream) == ["what now?"]


async def test_function_calls_are_items(gateway, upstream):
    """I1: the call and its output are listed, and are what the upstream is told."""
    made = (await create(gateway))["id"]
    called = (await respond(gateway, "weather?", conversation=made, model="tools")).json()
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"} for item in called["output"]
    ]
    await respond(gateway, outputs, conversation=made)
    listed = (await gateway.request("GET", f"{PATH}/{made}/items")).json()["data"]
    assert [item["type"] for item in listed] == (
        ["message"] + ["function_call"] * 2 + ["function_call_output"] * 2 + ["message"]
    )
    assert [item["call_id"] for item in listed[1:3]] == [item["call_id"] for item in listed[3:5]]
    roles = [message["role"] for message in upstream.calls[1].json()["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


async def test_nothing_gets_into_a_running_turn(start, upstream):
    """G1: items are not added under it; notes may be changed at any time."""
    gateways = [await start(), await start()]
    made = (await create(gateways[0]))["id"]
    holding = await hold(gateways[0], upstream, "held", session_id=made)
    refused = await gateways[1].request("POST", f"{PATH}/{made}/items", json={"items": [user("more")]})
    assert (refused.status, refused.code) == (409, "session_busy")
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await gateways[1].request("POST", f"{PATH}/{made}", json={"metadata": {"a": "b"}})).status == 200
    busy = await gateways[1].request("DELETE", f"{PATH}/{made}")
    assert (busy.status, busy.code) == (409, "session_busy")
    upstream.release()
    await holding
    assert await texts(gateways[1], made) == ["held", "held"]


async def test_items_that_were_added_are_not_in_a_chain_before_them(gateway, upstream):
    """I2: a response names the history it had: one that follows on it does not have what was added since."""
    made = (await create(gateway))["id"]
    first = (await respond(gateway, "one", conversation=made)).json()
    await gateway.request("POST", f"{PATH}/{made}/items", json={"items": [user("added")]})
    await respond(gateway, "two", previous_response_id=first["id"])
    assert said(upstream) == ["one", "one", "two"]
    await respond(gateway, "three", conversation=made)
    assert said(upstream) == ["one", "one", "added", "three"]


async def test_two_responses_at_once_in_one_conversation(start, upstream):
    """G1: they take turns: neither loses the other's part."""
    gateways = [await start(), await start()]
    made = (await create(gateways[0]))["id"]
    replies = await asyncio.gather(
        *(respond(gateways[n % 2], f"say {n}", conversation=made, model="slow:0.01") for n in range(6))
    )
    assert [reply.status for reply in replies] == [200] * 6
    assert (upstream.max_overlap, len(await texts(gateways[1], made))) == (1, 12)


@pytest.mark.parametrize("ask", [respond, run])
async def test_every_endpoint_finds_the_same_session(start, upstream, ask):
    """C2, C3, B65: explicit id or chain, then the declared key, then a new one; whichever decided is said."""
    gateway = await start()
    chained = (await respond(gateway, "one")).json()
    made = (await create(gateway))["id"]
    chain, here = chained["conversation"]["id"], {"conversation": made}
    declared = await gateway.chat("hello", session_key="chat-42")
    addresses = [
        ({}, None, None),
        ({"session_key": "chat-42"}, declared.session_id, "chat-42"),
        ({"session_id": made}, made, None),
        (here, made, None),
        (here | {"session_id": made}, made, None),
        (here | {"session_key": "chat-42"}, made, None),
        ({"previous_response_id": chained["id"]}, chain, None),
        ({"previous_response_id": chained["id"], "session_key": "chat-42"}, "fork", None),
        ({"previous_response_id": chained["id"], "session_id": chain}, "fork", None),
    ]
    for options, expected, key in addresses:
        reply = await ask(gateway, "more", **options)
        assert reply.status in (200, 202), (options, reply.body)
        if ask is run:
            await settled(gateway, reply.headers["Location"])
        if expected not in ("fork", None):
            assert reply.session_id == expected
        assert reply.headers.get("X-Hermes-Session-Key") == key
    again = await gateway.chat("hello", session_key="chat-42")
    assert again.session_id == declared.session_id


async def test_addresses_that_disagree_are_refused(start, upstream, store_server):
    """C2, B65: 400 `conflicting_session`, JSON for streams too, before any write; nothing is bound, nothing runs."""
    gateway = await start()
    chained = (await respond(gateway, "one")).json()
    other, made = (await create(gateway))["id"], (await create(gateway))["id"]
    before, count = dump(store_server), upstream.count
    conflicts = [
        {"session_id": other, "conversation": made},
        {"session_id": "chosen", "conversation": made},
        {"previous_response_id": chained["id"], "session_id": made},
        {"previous_response_id": chained["id"], "conversation": made},
        {"previous_response_id": chained["id"], "conversation": chained["conversation"]["id"]},
        {"previous_response_id": chained["id"], "session_id": made, "session_key": "chat-42", "key": "k"},
    ]
    for options in conflicts:
        replies = [await respond(gateway, "more", stream=stream, **options) for stream in (False, True)]
        replies.append(await run(gateway, "more", **options))
        assert {(reply.status, reply.code) for reply in replies} == {(400, "conflicting_session")}, options
    split = await run(gateway, "more", session=other, session_id=made)
    assert (split.status, split.code) == (400, "conflicting_session")
    assert (dump(store_server), upstream.count) == (before, count)


async def test_what_is_wrong_in_itself_is_refused(gateway, store_server):
    """J3: 400 before any write."""
    wrong = [
        ("POST", PATH, {"metadata": {"a": 1}}, "invalid_metadata"),
        ("POST", PATH, {"metadata": []}, "invalid_metadata"),
        ("POST", PATH, {"items": "text"}, "invalid_items"),
        ("POST", PATH, {"items": [{"type": "nothing"}]}, "invalid_items"),
        ("POST", PATH, [], "invalid_json"),
        ("POST", f"{PATH}/{GONE}/items", {"items": []}, "invalid_items"),
        ("POST", "/v1/responses", {"model": "ok", "input": "x", "conversation": 7}, "invalid_conversation"),
        ("POST", "/v1/responses", {"model": "ok", "input": "x", "conversation": {"id": ""}}, "invalid_conversation"),
    ]
    for method, path, body, code in wrong:
        refused = await gateway.request(method, path, json=body)
        assert (refused.status, refused.code) == (400, code), (path, body)
    assert dump(store_server) == {}


async def test_another_tenants_conversation_is_unknown(start):
    """B4: the same body as for one that never was."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one,beta:two"))
    theirs = (await create(gateway, api_key="one"))["id"]
    for method, suffix, body in (
        ("GET", "", None),
        ("POST", "", {"metadata": {"a": "b"}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [user("x")]}),
    ):
        replies = [
            await gateway.request(method, f"{PATH}/{wanted}{suffix}", json=body, api_key="two")
            for wanted in (theirs, GONE)
        ]
        assert [(reply.status, reply.code) for reply in replies] == [(404, "not_found")] * 2
        assert replies[0].body == replies[1].body
    assert (await gateway.request("GET", f"{PATH}/{theirs}", api_key="one")).json()["metadata"] == {}


async def test_nothing_of_a_deleted_conversation_is_left(gateway, store_server):
    """E4: neither items, nor metadata, nor requests, answers, events and instructions of what was done in it."""
    made = (await create(gateway, metadata={"a": SECRET_TEXT}, items=[user(SECRET_TEXT)]))["id"]
    await respond(gateway, SECRET_TEXT, conversation=made, instructions=SECRET_TEXT)
    await respond(gateway, SECRET_TEXT, conversation=made, stream=True, metadata={"b": SECRET_TEXT})
    keyed = await respond(gateway, SECRET_TEXT, conversation=made, key="k")
    await respond(gateway, SECRET_TEXT, conversation=made, key="l", stream=True, model="truncated")
    ran = (await run(gateway, SECRET_TEXT, conversation=made)).json()
    await settled(gateway, f"/v1/runs/{ran['id']}")
    assert (await gateway.request("DELETE", f"{PATH}/{made}")).status == 200
    left = {key: entry for key, entry in dump(store_server).items() if SECRET_TEXT in repr(entry)}
    (receipt,) = left.values()
    assert [name for name, value in receipt.value.items() if SECRET_TEXT.encode() in value] == [b"body"]
    again = await respond(gateway, SECRET_TEXT, conversation=made, key="k")
    assert (again.body, again.replayed) == (keyed.body, True)
    assert events_of((await respond(gateway, SECRET_TEXT, conversation=made, key="k", stream=True)).body)


async def test_receipts_go_too_where_that_is_asked_for(gateway, store_server):
    """E4: `?receipts=true` leaves not even the answers that keyed clients received."""
    for stream in (False, True):
        await respond(gateway, SECRET_TEXT, session_id="s", key=f"k{stream}", stream=stream)
    await run(gateway, SECRET_TEXT, session="s", key="r")
    await asyncio.sleep(0)
    listed = (await gateway.request("GET", "/v1/runs?session_id=s")).json()["data"]
    await settled(gateway, f"/v1/runs/{listed[0]['id']}")
    assert (await gateway.delete("s", "?receipts=true")).status == 200
    assert not any(SECRET_TEXT in repr(entry) for entry in dump(store_server).values())
    assert (await respond(gateway, SECRET_TEXT, session_id="s", key="kFalse")).code == "idempotency_expired"
    assert (await run(gateway, SECRET_TEXT, session="s", key="r")).code == "idempotency_expired"
