"""`previous_response_id`: which history a response follows on, on any replica, at any time."""

import asyncio

import pytest

from coordinator.keys import TenantKeys
from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import dump, hold, queued
from tests.adapter.responding import respond, run, said, settled, text_of
from tests.support.events import events_of


async def chain(gateways, *texts, **options):
    """Responses that follow on each other, from replica to replica."""
    made = []
    for number, text in enumerate(texts):
        previous = {"previous_response_id": made[-1]["id"]} if made else {}
        reply = await respond(gateways[number % len(gateways)], text, **previous, **options)
        assert reply.status == 200, reply.body
        made.append(reply.json())
    return made


async def test_from_the_newest_the_session_goes_on(start, upstream):
    """I2, B2: each response has all before it in its history, and all are one session."""
    gateways = [await start(), await start()]
    made = await chain(gateways, "one", "two", "three", instructions="be brief")
    assert said(upstream) == ["be brief", "one", "one", "two", "two", "three"]
    assert len({response["conversation"]["id"] for response in made}) == 1
    assert [response["previous_response_id"] for response in made] == [None, made[0]["id"], made[1]["id"]]


async def test_instructions_are_of_one_response(gateway, upstream):
    """I1: those of the one before are not carried on."""
    first = (await respond(gateway, "one", instructions="be brief")).json()
    await respond(gateway, "two", previous_response_id=first["id"])
    assert said(upstream) == ["one", "one", "two"]


async def test_from_an_older_one_a_fork_goes_on(start, upstream):
    """I2: a new session with that much of the transcript; the other goes on as if nothing had happened."""
    gateways = [await start(), await start()]
    made = await chain(gateways, "one", "two", "three")
    fork = (await respond(gateways[0], "other", previous_response_id=made[0]["id"])).json()
    assert said(upstream) == ["one", "one", "other"]
    assert fork["conversation"] != made[0]["conversation"]
    await respond(gateways[1], "more", previous_response_id=fork["id"])
    assert said(upstream) == ["one", "one", "other", "other", "more"]
    await respond(gateways[1], "four", previous_response_id=made[2]["id"])
    assert said(upstream) == ["one", "one", "two", "two", "three", "three", "four"]
    listed = (await gateways[0].request("GET", "/api/sessions")).json()["data"]
    assert sorted(session["turns"] for session in listed) == [2, 4]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_request_finds_the_history(start, upstream, stream):
    """B47, H3, I2: after the last byte at one replica the chain resolves at the other at once, 50 times in a row."""
    gateways = [await start(), await start()]
    previous: dict[str, str] = {}
    for number in range(50):
        reply = await respond(gateways[number % 2], f"say {number}", stream=stream, **previous)
        assert reply.status == 200, (number, reply.body)
        made = events_of(reply.body)[-1].json()["response"] if stream else reply.json()
        assert said(upstream) == [f"say {each}" for each in range(number) for _ in "qa"] + [f"say {number}"]
        previous = {"previous_response_id": made["id"]}
    assert upstream.count == 50


async def test_two_at_once_are_two_branches(start, upstream):
    """I2, G1: from one response, at the same time, at two replicas: each has exactly the history that it named."""
    gateways = [await start(), await start()]
    for number in range(10):
        (first,) = await chain(gateways, f"opening {number}")
        options = {"previous_response_id": first["id"], "model": "slow:0.01"}
        replies = await asyncio.gather(
            *(respond(gateways[side], f"side {side}", stream=side == 1, **options) for side in (0, 1))
        )
        assert [reply.status for reply in replies] == [200, 200]
        assert len({reply.session_id for reply in replies}) == 2
        for back in (1, 2):
            *history, new = said(upstream, -back)
            assert (history, new[:5]) == ([f"opening {number}"] * 2, "side ")
        both = [replies[0].json(), events_of(replies[1].body)[-1].json()["response"]]
        assert [text_of(each) for each in both] == ["side 0", "side 1"]
        for side in (0, 1):
            await respond(gateways[1 - side], "more", previous_response_id=both[side]["id"])
            assert said(upstream)[2:] == [f"side {side}"] * 2 + ["more"]


async def test_one_that_waited_and_was_overtaken_branches(start, upstream):
    """I2, G4: the history is judged when its turn comes: what was committed meanwhile is not in it."""
    gateways = [await start(), await start()]
    (first,) = await chain(gateways, "one")
    session_id = first["conversation"]["id"]
    holding = await hold(gateways[0], upstream, "held", session_id=session_id)
    waiting = asyncio.create_task(respond(gateways[1], "two", previous_response_id=first["id"]))
    await queued(gateways[0], session_id)
    upstream.release()
    await holding
    reply = await waiting
    assert (reply.status, said(upstream)) == (200, ["one", "one", "two"])
    assert reply.session_id != session_id


async def test_background_work_that_was_overtaken_branches(start, upstream):
    """I2, I4: accepted for one history, it has that one when it starts, in a session of its own; its id stays."""
    gateways = [await start(), await start()]
    (first,) = await chain(gateways, "one")
    session_id = first["conversation"]["id"]
    holding = await hold(gateways[0], upstream, "held", session_id=session_id)
    made = (await run(gateways[1], "two", previous_response_id=first["id"])).json()
    await queued(gateways[0], session_id)
    upstream.release()
    await holding
    done = await settled(gateways[0], f"/v1/runs/{made['id']}")
    assert said(upstream) == ["one", "one", "two"]
    assert done["session_id"] != session_id
    assert done["response_id"] == made["response_id"]
    for gateway in gateways:
        listed = (await gateway.request("GET", f"/v1/runs?session_id={done['session_id']}")).json()["data"]
        assert [each["id"] for each in listed] == [made["id"]]
        await respond(gateway, "three", previous_response_id=made["response_id"])
        assert said(upstream) == ["one", "one", "two", "two", "three"]
    await respond(gateways[0], "four", session_id=session_id)
    assert said(upstream) == ["one", "one", "held", "held", "four"]
    assert (await gateways[0].delete(session_id)).status == 200
    assert (await gateways[1].request("GET", f"/v1/runs/{made['id']}")).json() == done
    await gateways[0].delete(done["session_id"])
    assert (await gateways[1].request("GET", f"/v1/runs/{made['id']}")).status == 404


@pytest.mark.parametrize("limit", ["cap", "draining"])
async def test_a_fork_that_is_refused_leaves_nothing(start, upstream, store_server, limit):
    """I2, G10, J6: no session stays of a branch that was not let in, however often it is tried."""
    gateway = await start(max_running=1)
    made = await chain([gateway], "one", "two")
    holding = await hold(gateway, upstream, "held", session_id="s")
    if limit == "draining":
        gateway.coordinator.drain()
    before = {key for key in dump(store_server) if b":messages:" in key}
    for _ in range(3):
        refused = await respond(gateway, "other", previous_response_id=made[0]["id"])
        assert refused.code == {"cap": "rate_limit_exceeded", "draining": "gateway_draining"}[limit]
    upstream.release()
    await holding
    after = {key for key in dump(store_server) if b":messages:" in key}
    assert len(after - before) == 1  # of the one that held the place
    assert store_server.cli("ZCARD", TenantKeys("default").sessions) == 2


async def gone(gateway, how, response):
    """Ends what a response stands on; the id to follow on."""
    session_id = response["conversation"]["id"]
    if how == "reset":
        assert (await gateway.request("POST", f"/api/sessions/{session_id}/reset", api_key="one")).status == 200
    elif how == "deleted":
        assert (await gateway.delete(session_id, api_key="one")).status == 200
    elif how == "pruned":
        await gateway.delete(session_id, api_key="one")
        await gateway.coordinator.prune("acme", 0)
    elif how == "response-deleted":
        await gateway.request("DELETE", f"/v1/responses/{response['id']}", api_key="one")
    return {"unknown": f"resp_m{24 * '0'}_{32 * '0'}", "garbage": "resp_{*}", "session": session_id}.get(
        how, response["id"]
    )


async def test_a_chain_that_leads_nowhere_is_not_found(start, upstream):
    """I2, B4: after a reset, a deletion, a pruning, of another tenant, or garbage: 404, one body, no upstream call."""
    gateways = [await start(keys=ApiKeys.load(None, "acme:one,beta:two")) for _ in range(2)]
    bodies, ways = set(), ("reset", "deleted", "pruned", "response-deleted", "unknown", "garbage", "session", "")
    for how in ways:
        made = (await respond(gateways[0], "one", api_key="one")).json()
        previous = await gone(gateways[0], how, made)
        count = upstream.count
        for stream, key in ((False, None), (True, None), (True, f"k{how[-7:]}"), (False, f"j{how[-7:]}")):
            for ask in (respond, run):
                options = {"stream": stream} if ask is respond else {}
                reply = await ask(
                    gateways[1], "more", previous_response_id=previous, key=key and key + ask.__name__,
                    api_key="one" if how else "two", **options,
                )  # fmt: skip
                assert (reply.status, reply.code) == (404, "not_found"), (how, stream, key)
                assert reply.headers["Content-Type"].startswith("application/json")
                bodies.add(reply.body)
        assert upstream.count == count
    assert len(bodies) == 1


async def test_a_chain_whose_session_ends_while_it_waits(start, upstream):
    """G4: deleted or reset meanwhile: 404 and no upstream call."""
    gateways = [await start(lease_ms=1_500), await start(lease_ms=1_500)]
    for how in ("?force=true", "reset"):
        (first,) = await chain(gateways, "one")
        session_id = first["conversation"]["id"]
        holding = await hold(gateways[0], upstream, "held", session_id=session_id)
        waiting = asyncio.create_task(respond(gateways[1], "two", previous_response_id=first["id"]))
        await queued(gateways[0], session_id)
        count = upstream.count
        if how == "reset":
            await gateways[0].request("POST", f"/api/sessions/{session_id}/reset")
        else:
            await gateways[0].delete(session_id, how)
        refused = await waiting
        assert (refused.status, refused.code, upstream.count) == (404, "not_found", count)
        assert (await holding).status == 409


async def test_an_exact_retry_of_a_chain_outlives_its_session(gateway, upstream):
    """F1, F2: the key's answer, and the session it was given in, also when the chain leads nowhere any more."""
    made = await chain([gateway], "one")
    options = {"previous_response_id": made[0]["id"], "key": "k"}
    first = await respond(gateway, "two", **options)
    for end in ("nothing", "response", "session", "pruned"):
        if end == "response":
            await gateway.request("DELETE", f"/v1/responses/{made[0]['id']}")
        elif end == "session":
            await gateway.delete(first.session_id)
        elif end == "pruned":
            await gateway.coordinator.prune("default", 0)
        again = await respond(gateway, "two", **options)
        assert (again.status, again.body, again.session_id, again.replayed) == (200, first.body, first.session_id, True)
        streamed = events_of((await respond(gateway, "two", stream=True, **options)).body)
        assert streamed[-1].json()["response"] == first.json()
        conflict = await respond(gateway, "other", **options)
        assert (conflict.status, conflict.code) == (409, "admission_conflict")
    assert upstream.count == 2


async def test_a_retried_fork_is_made_once(start, upstream, store_server):
    """F1, F3: the same branch sent five times at once over two replicas is one turn in one session."""
    gateways = [await start(), await start()]
    made = await chain(gateways, "one", "two")
    options = {"previous_response_id": made[0]["id"], "key": "k", "model": "slow:0.05"}
    replies = await asyncio.gather(*(respond(gateways[n % 2], "other", **options) for n in range(5)))
    assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
    assert (upstream.count, store_server.cli("ZCARD", TenantKeys("default").sessions)) == (3, 2)
    await respond(gateways[0], "more", previous_response_id=replies[0].json()["id"])
    assert said(upstream) == ["one", "one", "other", "other", "more"]


async def test_a_failed_turn_leaves_the_chain_where_it_was(gateway, upstream):
    """I2, H5: what failed said nothing: the next one follows on the same response in the same session."""
    (first,) = await chain([gateway], "one")
    failed = await respond(gateway, "two", previous_response_id=first["id"], model="truncated", stream=True)
    assert events_of(failed.body)[-1].name == "response.failed"
    again = await respond(gateway, "two", previous_response_id=first["id"])
    assert (again.status, said(upstream)) == (200, ["one", "one", "two"])
    assert again.session_id == first["conversation"]["id"]


async def test_a_run_goes_on_where_a_response_was(gateway, upstream):
    """I2: chains lead from one endpoint to the other."""
    (first,) = await chain([gateway], "one")
    made = (await run(gateway, "two", previous_response_id=first["id"])).json()
    await upstream.until(lambda up: up.count == 2)
    assert said(upstream) == ["one", "one", "two"]
    assert made["session_id"] == first["conversation"]["id"]
