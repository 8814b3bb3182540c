"""`/v1/runs`: background turns, as those see them who watch from any replica."""

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import dump, hold, queued, session_path, user
from tests.adapter.responding import GONE, in_state, run, said, settled
from tests.support.events import EventReader, events_of, names, numbers


async def test_a_run_is_accepted_at_once(start, upstream):
    """I3, B34: 202 with its id and where to find it; every replica knows it from then on."""
    gateways = [await start(), await start()]
    reply = await run(gateways[0], "one two", model="gate", session="s", metadata={"a": "b"})
    body = reply.json()
    assert (reply.status, body["object"], body["replayed"]) == (202, "run", False)
    assert (body["session_id"], body["metadata"], body["output"], body["error"]) == ("s", {"a": "b"}, [], None)
    assert body["status"] in ("queued", "running")
    assert (body["id"], reply.session_id) == (body["run_id"], "s")
    path = reply.headers["Location"]
    assert path == f"/v1/runs/{body['run_id']}"
    for gateway in gateways:
        assert (await gateway.request("GET", path)).json()["id"] == body["id"]
    await upstream.until(lambda up: up.running == 1)
    running = (await gateways[1].request("GET", path)).json()
    assert (running["status"], running["ended_at"]) == ("running", None)
    upstream.release()
    done = await settled(gateways[1], path)
    assert (done["status"], done["output"][0]["content"][0]["text"]) == ("completed", "one two")
    assert done["ended_at"] >= done["created_at"] == body["created_at"]
    assert done["usage"]["output_tokens"] == 2
    response = (await gateways[0].request("GET", f"/v1/responses/{done['response_id']}")).json()
    assert (response["status"], response["output"]) == ("completed", done["output"])


async def test_the_runs_of_a_session_are_listed(start, upstream):
    """I3: in order of their start, in every state, with none of another session and none that is no run."""
    gateways = [await start(), await start()]
    done = [(await run(gateways[n % 2], f"run {n}", session="s")).json()["id"] for n in range(3)]
    for wanted in done:
        await settled(gateways[0], f"/v1/runs/{wanted}")
    await run(gateways[0], "elsewhere", session="t")
    await gateways[0].chat("no run", session_id="s")
    last = (await run(gateways[1], "last", session="s", model="gate")).json()["id"]
    await in_state(gateways[1], f"/v1/runs/{last}", "running")
    for gateway in gateways:
        listed = (await gateway.request("GET", "/v1/runs?session_id=s")).json()
        assert (listed["object"], [each["id"] for each in listed["data"]]) == ("list", [*done, last])
        assert [each["status"] for each in listed["data"]] == ["completed"] * 3 + ["running"]
    await upstream.until(lambda up: up.running == 1)
    upstream.release()
    refused = await gateways[0].request("GET", "/v1/runs")
    assert (refused.status, refused.code) == (400, "invalid_session_id")
    for unknown in ("nobody", GONE):
        assert (await gateways[0].request("GET", f"/v1/runs?session_id={unknown}")).code == "not_found"


@pytest.mark.parametrize("session", [None, "s"])
async def test_runs_of_a_session_take_turns(start, upstream, session):
    """G1, B2: whichever route starts them, one at a time, each with the history of those before it."""
    gateways = [await start(), await start()]
    first = (await run(gateways[0], "one", session=session, model="slow:0.01")).json()
    session_id = first["session_id"]
    await run(gateways[1], "two", session=session_id, model="slow:0.01")
    last = (await run(gateways[0], "three", session=session_id)).json()
    await settled(gateways[1], f"/v1/runs/{last['id']}")
    kept = (await gateways[1].request("GET", session_path(session_id) + "/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["one", "one", "two", "two", "three", "three"]
    assert (upstream.max_overlap, said(upstream)) == (1, ["one", "one", "two", "two", "three"])


async def test_its_events_can_be_watched_from_anywhere(start, upstream):
    """I3, H2: as they come and afterwards, from the first or behind `Last-Event-ID`, at every replica."""
    gateways = [await start(), await start()]
    made = (await run(gateways[0], "one two", model="gate_mid")).json()
    url = f"/v1/runs/{made['id']}/events"
    async with EventReader(gateways[1].http, "GET", gateways[1].url + url) as stream:
        assert stream.response.headers["Content-Type"].startswith("text/event-stream")
        begun = await stream.take(5)
        assert names(begun)[-1] == "response.output_text.delta"
        for last in ("5", "900"):  # there is none yet
            gone = await gateways[1].request("GET", url, headers={"Last-Event-ID": last})
            assert (gone.status, gone.code) == (410, "events_lost")
        await upstream.until(lambda up: up.running == 1)
        upstream.release()
        whole = begun + await stream.rest()
    assert numbers(whole) == [*range(10)]
    assert whole[-1].json()["response"]["status"] == "completed"
    for gateway in gateways:
        assert events_of((await gateway.request("GET", url)).body) == whole
        for last in (0, 4, 9):
            rest = await gateway.request("GET", url, headers={"Last-Event-ID": str(last)})
            assert events_of(rest.body) == whole[last + 1 :]
        for wrong, refusal in (("10", (410, "events_lost")), ("x", (400, "invalid_last_event_id"))):
            reply = await gateway.request("GET", url, headers={"Last-Event-ID": wrong})
            assert (reply.status, reply.code) == refusal


@pytest.mark.parametrize("state", ["queued", "running", "completed"])
async def test_it_can_be_stopped_from_the_other_replica(start, upstream, state):
    """I3, G7, B34: its state is told as it is then; what has ended stays as it is."""
    gateways = [await start(lease_ms=1_500), await start(lease_ms=1_500)]
    holding = await hold(gateways[0], upstream, "held", session_id="s") if state == "queued" else None
    made = (await run(gateways[0], "hello", session="s", model="ok" if state == "completed" else "gate")).json()
    path = f"/v1/runs/{made['id']}"
    await in_state(gateways[1], path, state)
    if state == "queued":
        await queued(gateways[1], "s")
    elif state == "running":
        await upstream.until(lambda up: up.running == 1)
    for _ in range(2):
        stopped = await gateways[1].request("POST", path + "/stop")
        ended = "completed" if state == "completed" else "cancelled"
        assert (stopped.status, stopped.json()["status"]) == (200, ended)
    assert (await gateways[0].request("GET", path)).json() == stopped.json()
    events = events_of((await gateways[0].request("GET", path + "/events")).body)
    assert events[-1].json()["response"]["status"] == ended
    if state == "running":
        await upstream.until(lambda up: up.aborted == 1)
    if holding:
        upstream.release()
        await holding
    assert (await gateways[1].chat("next", session_id="s")).status == 200
    assert "hello" not in said(upstream) or state == "completed"


async def test_a_deletion_stops_it(start, upstream):
    """B35, E3: through another replica: the upstream is closed, its watchers are told, and it is gone."""
    gateways = [await start(lease_ms=1_500), await start(lease_ms=1_500)]
    made = (await run(gateways[0], "one two", session="s", model="gate_mid")).json()
    later = (await run(gateways[0], "later", session="s")).json()
    path = f"/v1/runs/{made['id']}"
    async with EventReader(gateways[1].http, "GET", f"{gateways[1].url}{path}/events") as stream:
        await stream.take(5)
        assert (await gateways[1].delete("s")).code == "session_busy"
        assert (await gateways[1].delete("s", "?force=true")).status == 200
        (ended,) = await stream.rest()
    assert (ended.number, ended.json()["response"]["status"]) == (5, "cancelled")
    await upstream.until(lambda up: up.aborted == 1)
    for each in (made, later):
        for gateway in gateways:
            assert (await gateway.request("GET", f"/v1/runs/{each['id']}")).status == 404
            assert (await gateway.request("POST", f"/v1/runs/{each['id']}/stop")).status == 404
            assert (await gateway.request("GET", f"/v1/runs/{each['id']}/events")).status == 404
    assert upstream.count == 1


@pytest.mark.parametrize("state", ["queued", "running", "completed"])
async def test_an_exact_retry_is_the_same_run(start, upstream, state):
    """F1, B46, B74: 202 again with the same id, place and session; it says that it is a replay, and nothing runs."""
    gateways = [await start(), await start()]
    holding = await hold(gateways[0], upstream, "held", session_id="s") if state == "queued" else None
    options = {"key": "k", "model": "ok" if state == "completed" else "gate", "session": "s" if holding else None}
    first = await run(gateways[0], "hello", **options)
    await in_state(gateways[1], first.headers["Location"], state)
    again = await run(gateways[1], "hello", **options)
    assert (again.status, again.replayed, first.replayed) == (202, True, False)
    for name in ("Location", "X-Hermes-Session-Id", "Content-Type"):
        assert again.headers[name] == first.headers[name]
    assert (again.json()["id"], again.json()["replayed"]) == (first.json()["id"], True)
    assert again.json()["status"] == state
    other = await run(gateways[1], "other", **options)
    assert (other.status, other.code) == (409, "admission_conflict")
    upstream.release()
    if holding:
        await holding
        await upstream.until(lambda up: up.count == 2)
        upstream.release()
    await settled(gateways[0], first.headers["Location"])
    assert upstream.count == (2 if holding else 1)


@pytest.mark.parametrize("first", ["chat", "responses", "runs"])
async def test_a_key_is_of_one_endpoint(gateway, upstream, first):
    """F2, B37: used on another it is a conflict, never an answer of the other's kind, never a silent nothing."""
    asks = {
        "chat": ("/v1/chat/completions", {"model": "ok", "messages": [user("hello")]}),
        "responses": ("/v1/responses", {"model": "ok", "input": "hello"}),
        "runs": ("/v1/runs", {"model": "ok", "input": "hello"}),
    }
    path, body = asks.pop(first)
    assert (await gateway.request("POST", path, json=body, key="k")).status in (200, 202)
    for path, body in asks.values():
        refused = await gateway.request("POST", path, json=body, key="k")
        assert (refused.status, refused.code) == (409, "admission_conflict")
    await upstream.until(lambda up: up.count == 1)


async def test_a_declared_key_finds_the_session(start):
    """C1, C2, B74: the same conversation as on other routes; the answer says so, and its replay too."""
    gateways = [await start(), await start()]
    known = await gateways[0].chat("hello", session_key="chat-42")
    for _ in range(2):
        made = await run(gateways[1], "more", session_key="chat-42", key="k")
        assert (made.session_id, made.headers["X-Hermes-Session-Key"]) == (known.session_id, "chat-42")
    await settled(gateways[0], made.headers["Location"])


async def test_what_is_wrong_in_itself_is_refused(gateway, upstream, store_server):
    """J3: 400 before any write."""
    wrong = [
        ({"session_id": 7}, "invalid_session_id"),
        ({"session_id": ""}, "invalid_session_id"),
        ({"session_id": "s" * 257}, "invalid_session_id"),
        ({"stream": True}, "invalid_stream"),
        ({"input": []}, "invalid_input"),
        ({"model": None}, "invalid_model"),
        ({"metadata": {"a": 1}}, "invalid_metadata"),
        ({"tools": [{"type": "web_search"}]}, "invalid_tools"),
    ]
    for fields, code in wrong:
        refused = await gateway.request("POST", "/v1/runs", json={"model": "ok", "input": "hello", **fields})
        assert (refused.status, refused.code) == (400, code)
    assert (dump(store_server), upstream.count) == ({}, 0)


async def test_another_tenants_run_is_unknown(start, upstream):
    """B4: on every route, with the answer for what never was."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one,beta:two"))
    made = (await run(gateway, "hello", api_key="one", session="s")).json()["id"]
    await settled(gateway, f"/v1/runs/{made}", api_key="one")
    for method, suffix in (("GET", ""), ("GET", "/events"), ("POST", "/stop")):
        replies = [
            await gateway.request(method, f"/v1/runs/{wanted}{suffix}", api_key="two")
            for wanted in (made, f"run_m{24 * '0'}_{32 * '0'}", "run_{}")
        ]
        assert {(reply.status, reply.body) for reply in replies} == {(404, replies[0].body)}
    assert (await gateway.request("GET", "/v1/runs?session_id=s", api_key="two")).status == 404
    theirs = (await run(gateway, "mine", api_key="two", session="s")).json()
    await settled(gateway, f"/v1/runs/{theirs['id']}", api_key="two")
    assert said(upstream) == ["mine"]


async def test_a_run_over_the_cap_is_turned_away(start, upstream):
    """G10, B60: 429 and its key is free; a retry of what was accepted is answered all the same."""
    gateways = [await start(max_running=1), await start(max_running=1)]
    made = await run(gateways[0], "one", model="gate", key="k")
    await upstream.until(lambda up: up.running == 1)
    refused = await run(gateways[1], "two", key="other")
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert int(refused.headers["Retry-After"]) >= 1
    again = await run(gateways[1], "one", model="gate", key="k")
    assert (again.status, again.json()["id"], again.replayed) == (202, made.json()["id"], True)
    upstream.release()
    await settled(gateways[1], made.headers["Location"])
    let_in = await run(gateways[1], "two", key="other")
    assert (let_in.status, let_in.replayed) == (202, False)
    await settled(gateways[0], let_in.headers["Location"])
