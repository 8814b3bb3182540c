"""Which session a request leads to when it names several, on the endpoints that can name them all."""

import itertools

import pytest

from tests.support.waiting import until

NAMED = list(itertools.product(["none", "chain"], ["none", "same", "other", "body"], ["none", "known", "new"]))


async def ended(gateway, reply):
    """Wait until nothing of a run is under way."""

    async def over():
        run = (await gateway.request("GET", f"/v1/runs/{reply.json()['run_id']}")).json()
        return run["status"] == "completed"

    await until(over)


@pytest.mark.parametrize("how", ["responses", "responses streamed", "runs"])
@pytest.mark.parametrize(("chain", "named", "declared"), NAMED, ids=["+".join(each) for each in NAMED])
async def test_one_table_for_every_endpoint(gateway, upstream, how, chain, named, declared):
    """C2, C3, B65: a chain or an id, then a key, then a new session; what disagrees is 400; a key that led nowhere
    is neither echoed nor bound."""
    first = await gateway.request("POST", "/v1/responses", json={"model": "ok", "input": "hi"}, session_key="known")
    other = await gateway.chat("hello", session_id="other")
    ids = {"same": first.session_id, "other": other.session_id, "body": "in the body"}
    runs = how == "runs"
    body = {"model": "ok", "input": "more"} | ({"stream": True} if how == "responses streamed" else {})
    options = {}
    if chain == "chain":
        body["previous_response_id"] = first.json()["id"]
    if named == "body":
        body["session_id" if runs else "conversation"] = ids[named]
    elif named != "none":
        options["session_id"] = ids[named]
    if declared != "none":
        options["session_key"] = declared
    calls = upstream.count
    said = await gateway.request("POST", "/v1/runs" if runs else "/v1/responses", json=body, **options)
    if chain == "chain" and named in ("other", "body"):
        assert (said.status, said.code, upstream.count) == (400, "conflicting_session", calls)
        assert said.headers["Content-Type"].startswith("application/json")
        return
    assert said.status == (202 if runs else 200)
    if runs:
        await ended(gateway, said)
    assert upstream.count == calls + 1
    led = first.session_id if chain == "chain" else ids.get(named)
    if led is None and declared == "known":
        led = first.session_id
    if led is not None:
        assert said.session_id == led
    by_key = chain == "none" and named == "none" and declared != "none"
    assert said.headers.get("X-Hermes-Session-Key") == (declared if by_key else None)
    assert (await gateway.chat("hello", session_key="known")).session_id == first.session_id
    fresh = await gateway.chat("hello", session_key="new")
    assert (fresh.session_id == said.session_id) == (by_key and declared == "new")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/runs"])
async def test_the_source_is_part_of_the_request(start, path):
    """F2, C1: the same Idempotency-Key and declared key under another source is another request: a conflict."""
    here, studio = await start(), await start(source="studio")
    body = {"model": "ok", "input": "hi"}
    first = await here.request("POST", path, json=body, session_key="chat-42", key="k")
    if path == "/v1/runs":
        await ended(here, first)
    other = await studio.request("POST", path, json=body, session_key="chat-42", key="k")
    assert (other.status, other.code) == (409, "admission_conflict")
    assert (await here.request("POST", path, json=body, session_key="chat-42", key="k")).replayed


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_does_not_outlive_its_generation(gateway, upstream, stream):
    """I2, C7: after a reset of its conversation it is 404 and nothing runs; the key leads on without a history."""
    first = await gateway.request("POST", "/v1/responses", json={"model": "ok", "input": "hi"}, session_key="k")
    await gateway.request("POST", f"/api/sessions/{first.session_id}/reset")
    body = {"model": "ok", "input": "more", "stream": stream}
    gone = await gateway.request(
        "POST", "/v1/responses", json=body | {"previous_response_id": first.json()["id"]}, session_key="k"
    )
    assert (gone.status, gone.code, upstream.count) == (404, "not_found", 1)
    after = await gateway.request("POST", "/v1/responses", json=body, session_key="k")
    assert after.status == 200
    assert after.session_id != first.session_id
    assert [message["content"] for message in upstream.calls[-1].json()["messages"]] == ["more"]


async def test_a_reset_ends_work_in_the_background(gateway, upstream):
    """C7, I4: what runs is stopped, what was accepted and waits is never started; the next run is of the next."""
    body = {"model": "gate", "input": "hi"}
    running = await gateway.request("POST", "/v1/runs", json=body, session_key="k")
    await upstream.until(lambda up: up.running == 1)
    waiting = await gateway.request("POST", "/v1/runs", json=body, session_key="k")
    assert waiting.session_id == running.session_id
    done = await gateway.request("POST", f"/api/sessions/{running.session_id}/reset")
    await upstream.until(lambda up: up.aborted == 1)
    await until(lambda: is_over(gateway, running))
    await until(lambda: is_over(gateway, waiting))
    after = await gateway.request("POST", "/v1/runs", json=body | {"model": "ok"}, session_key="k")
    assert after.session_id == done.json()["session_id"]
    await ended(gateway, after)
    assert upstream.count == 2


async def is_over(gateway, reply):
    """Whether a run has ended, or nothing of it is left."""
    run = await gateway.request("GET", f"/v1/runs/{reply.json()['run_id']}")
    return run.status == 404 or run.json()["status"] in ("cancelled", "failed", "interrupted")
