"""`background: true`: work that is written down first, made without its client, watched and stopped from anywhere."""

import asyncio
from typing import Any

import pytest

from tests.adapter.gateway import dump, end_lease, hold, queued, session_path
from tests.adapter.responding import in_state, respond, run, said, settled, text_of
from tests.support.events import EventReader, events_of, names, numbers
from tests.support.waiting import until

ACCEPTED = "coord1:{default}:accepted"


async def background(gateway, text="one two", **options):
    """Background work; its path and what its client was told."""
    made = (await respond(gateway, text, background=True, **options)).json()
    return f"/v1/responses/{made['id']}", made


def expire(server):
    """Let nobody vouch for accepted work any more, as a while after its replica died."""
    for turn in server.cli("ZRANGE", ACCEPTED, 0, -1):
        server.cli("ZADD", ACCEPTED, "XX", 1, turn)


async def test_it_goes_through_its_states(start, upstream):
    """I1, I4: queued while its conversation is busy, then in progress, then completed, on every replica alike."""
    gateways = [await start(), await start()]
    holding = await hold(gateways[0], upstream, "held", session_id="s")
    path, made = await background(gateways[0], model="gate", session_id="s", metadata={"a": "b"})
    assert (made["status"], made["background"], made["output"], made["metadata"]) == ("queued", True, [], {"a": "b"})
    assert [(await each.request("GET", path)).json() for each in gateways] == [made] * 2
    assert upstream.release() == 1
    await holding
    await in_state(gateways[1], path, "in_progress")
    assert (await gateways[1].request("GET", path)).json() == made | {"status": "in_progress"}
    await upstream.until(lambda up: up.running == 1)
    upstream.release()
    done = await settled(gateways[1], path)
    assert (done["status"], text_of(done), done["created_at"]) == ("completed", "one two", made["created_at"])
    kept = (await gateways[1].request("GET", session_path("s") + "/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["held", "held", "one two", "one two"]


async def test_it_needs_to_be_stored(gateway, upstream, store_server):
    """I1: what nobody may keep cannot be fetched: 400 before any write."""
    refused = await respond(gateway, "hello", background=True, store=False)
    assert (refused.status, refused.code, refused.json()["error"]["param"]) == (400, "invalid_background", "background")
    assert (dump(store_server), upstream.count) == ({}, 0)


@pytest.mark.parametrize("at", [0, 1])
async def test_its_stream_can_be_watched_from_its_start(start, at):
    """I1, H2: with `stream` its events come as they are made; each replica gives them again, the same."""
    gateways = [await start(), await start()]
    reply = await respond(gateways[0], "one two", background=True, stream=True)
    events = events_of(reply.body)
    assert numbers(events) == [event.json()["sequence_number"] for event in events] == [*range(10)]
    assert (events[0].name, events[-1].name) == ("response.created", "response.completed")
    assert reply.session_id
    final = events[-1].json()["response"]
    again = await gateways[at].request("GET", f"/v1/responses/{final['id']}?stream=true")
    assert events_of(again.body) == events


async def test_a_client_that_leaves_does_not_stop_it(start, upstream):
    """H4: it is made all the same, and read at the other replica from where the client was."""
    gateways = [await start(), await start()]
    asked = {"model": "gate_mid", "input": "one two", "background": True, "stream": True}
    async with EventReader(gateways[0].http, "POST", gateways[0].url + "/v1/responses", json=asked) as stream:
        begun = await stream.take(5)
    upstream.release()
    path = f"/v1/responses/{begun[0].json()['response']['id']}?stream=true&starting_after=4"
    rest = events_of((await gateways[1].request("GET", path)).body)
    assert numbers([*begun, *rest]) == [*range(10)]
    assert (rest[-1].name, upstream.aborted) == ("response.completed", 0)


@pytest.mark.parametrize("state", ["queued", "in_progress"])
@pytest.mark.parametrize("at", [0, 1])
async def test_it_can_be_cancelled_from_every_replica(start, upstream, state, at):
    """I1, G7, G8: before it started and while it is made; it stays cancelled, and nothing of it is in the history."""
    gateways = [await start(lease_ms=1_500), await start(lease_ms=1_500)]
    holding = await hold(gateways[0], upstream, "held", session_id="s") if state == "queued" else None
    path, made = await background(gateways[0], model="gate_mid", session_id="s")
    await in_state(gateways[at], path, state)
    if state == "queued":
        await queued(gateways[at], "s")
    else:
        await upstream.until(lambda up: bool(up.calls and up.calls[0].sent))
    stopped = await gateways[at].request("POST", path + "/cancel")
    assert (stopped.status, stopped.json()) == (200, made | {"status": "cancelled"})
    if holding:
        await queued(gateways[at], "s", 0)
        upstream.release()
        await holding
    else:
        await upstream.until(lambda up: up.aborted == 1)
    for gateway in gateways:
        assert (await gateway.request("GET", path)).json()["status"] == "cancelled"
        events = events_of((await gateway.request("GET", path + "?stream=true")).body)
        assert (events[-1].name, events[-1].json()["response"]["status"]) == ("response.failed", "cancelled")
        assert (await gateway.request("POST", path + "/cancel")).json()["status"] == "cancelled"
        assert (await respond(gateway, "more", previous_response_id=made["id"])).status == 404
    assert (await gateways[0].chat("next", session_id="s")).status == 200
    assert "one two" not in said(upstream)
    assert upstream.count == 2


async def test_what_has_ended_stays_as_it_is(gateway, upstream):
    """G8: a cancellation that comes too late is told the real state."""
    path, _ = await background(gateway)
    done = await settled(gateway, path)
    assert (await gateway.request("POST", path + "/cancel")).json() == done
    upstream.upcoming.append("status:500")
    path, _ = await background(gateway)
    failed = await settled(gateway, path)
    assert (await gateway.request("POST", path + "/cancel")).json() == failed
    assert (failed["status"], failed["error"]["code"]) == ("failed", "upstream_failed")


async def test_a_cancellation_that_races_with_the_end(start, upstream):
    """G8: one terminal state wins, the one that is told and kept, and one terminal event; 20 times."""
    gateways = [await start(), await start()]
    seen = set()
    for _ in range(20):
        path, _ = await background(gateways[0], model="gate")
        await upstream.until(lambda up: up.running == 1)
        upstream.release()
        told = (await gateways[1].request("POST", path + "/cancel")).json()["status"]
        kept = {(await gateway.request("GET", path)).json()["status"] for gateway in gateways}
        assert kept == {told}
        events = events_of((await gateways[0].request("GET", path + "?stream=true")).body)
        ends = [e for e in events if e.name in ("response.completed", "response.failed")]
        assert [end.json()["response"]["status"] for end in ends] == [told]
        await upstream.until(lambda up: up.running == 0)
        seen.add(told)
    assert seen <= {"completed", "cancelled"}


@pytest.mark.parametrize("mode", ["status:400", "status:500", "reset_before", "truncated", "malformed"])
async def test_a_failure_is_its_end(start, upstream, mode):
    """H5, F6, G8: it was accepted, so every failure is its outcome: told as JSON and as the end of its stream, and
    to every retry."""
    gateways = [await start(), await start()]
    upstream.upcoming.append(mode)
    path, made = await background(gateways[0], key="k")
    failed = await settled(gateways[1], path)
    assert (failed["status"], failed["id"]) == ("failed", made["id"])
    assert failed["error"]["code"] in ("upstream_failed", "upstream_refused")
    for gateway in gateways:
        events = events_of((await gateway.request("GET", path + "?stream=true")).body)
        assert numbers(events) == [*range(len(events))]
        assert [event.name for event in events].count("response.failed") == 1
        assert events[-1].json()["response"]["error"] == failed["error"]
        after = await gateway.request("GET", f"{path}?stream=true&starting_after={len(events) - 1}")
        assert (after.status, after.body) == (200, b"")
        again = await respond(gateway, "one two", background=True, key="k")
        assert (again.status, again.json(), again.replayed) == (200, failed, True)
    assert upstream.count == 1


async def test_an_exact_retry_is_the_same_work(start, upstream):
    """F1, F3, B46: queued, running, ended, deleted: one id, one run, on every replica."""
    gateways = [await start(), await start()]
    options: dict[str, Any] = {"background": True, "key": "k", "model": "gate", "session_id": "s"}
    holding = await hold(gateways[0], upstream, "held", session_id="s")
    replies = await asyncio.gather(*(respond(gateways[n % 2], "one two", **options) for n in range(10)))
    assert {(reply.status, reply.json()["status"]) for reply in replies} == {(200, "queued")}
    assert sorted(reply.replayed for reply in replies) == [False] + [True] * 9
    (wanted,) = {reply.json()["id"] for reply in replies}
    upstream.release()
    await holding
    for state in ("in_progress", "completed", "deleted"):
        if state == "deleted":
            assert (await gateways[0].delete("s")).status == 200
        else:
            await in_state(gateways[0], f"/v1/responses/{wanted}", state)
        for gateway in gateways:
            again = await respond(gateway, "one two", **options)
            assert (again.status, again.json()["id"], again.replayed) == (200, wanted, True)
            assert again.json()["status"] == ("completed" if state == "deleted" else state)
            assert again.session_id == "s"
            other = await respond(gateway, "other", **options)
            assert (other.status, other.code) == (409, "admission_conflict")
        await upstream.until(lambda up: up.count == 2)
        upstream.release()
    assert upstream.count == 2


@pytest.mark.parametrize("end", ["cancelled", "failed", "deleted"])
async def test_an_exact_retry_tells_how_it_ended(start, upstream, end):
    """F1, G8, E4: also when it was stopped or failed, and when its session, and what it asked, is gone."""
    gateways = [await start(lease_ms=1_500), await start(lease_ms=1_500)]
    options = {"key": "k", "model": "status:500" if end == "failed" else "gate"}
    made = await run(gateways[0], "hello", **options)
    await upstream.until(lambda up: up.count == 1)
    if end == "cancelled":
        await gateways[1].request("POST", f"/v1/runs/{made.json()['id']}/stop")
    if end == "failed":
        await settled(gateways[1], f"/v1/runs/{made.json()['id']}")
    for deleted in (end == "deleted", True):
        if deleted:
            await gateways[1].delete(made.session_id, "?force=true")
        again = await run(gateways[1], "hello", **options)
        assert (again.status, again.replayed, again.json()["id"]) == (202, True, made.json()["id"])
        assert again.json()["status"] == ("failed" if end == "failed" else "cancelled")
    assert upstream.count == 1


async def test_accepted_work_that_nobody_vouches_for_is_started_once(start, upstream, store_server):
    """I4: others take it over when its replica says nothing for a while, and whoever is first runs it, in its order."""
    late, *others = [await start() for _ in range(4)]
    holding = await hold(others[0], upstream, "held", session_id="s")
    paths = [(await background(late, f"work {number}", session_id="s"))[0] for number in range(3)]
    await queued(others[0], "s", 3)
    expire(store_server)
    upstream.release()
    await holding
    done = [await settled(others[1], path) for path in paths]
    assert [text_of(response) for response in done] == ["work 0", "work 1", "work 2"]
    assert (upstream.count, upstream.max_overlap) == (4, 1)


async def test_work_that_is_late_is_not_run_beside_itself(start, upstream, store_server, caplog):
    """I4, G1: a replica that claims what it is about to start anyway starts it once."""
    gateway = await start(poll_ms=200)
    holding = await hold(gateway, upstream, "held", session_id="s")
    path, _ = await background(gateway, "work", session_id="s")
    await queued(gateway, "s")
    turn = path[-32:]
    for _ in range(60):  # longer than the replica takes to look for work that nobody vouches for
        store_server.cli("ZADD", ACCEPTED, "XX", 1, turn)
        await asyncio.sleep(0.02)
    upstream.release()
    await holding
    await settled(gateway, path)
    await asyncio.sleep(0.3)  # longer than anybody who waits sleeps
    assert (upstream.count, caplog.text) == (2, "")


async def test_more_work_than_may_wait(start, upstream):
    """G3, I4: at a full queue it is turned away with its key free; what was accepted is all done, in its order."""
    gateway = await start(queue_limit=4)
    holding = await hold(gateway, upstream, "held", session_id="s")
    paths, refused = [], []
    for number in range(8):
        reply = await respond(gateway, f"work {number}", background=True, session_id="s", key=f"k{number}")
        (paths if reply.status == 200 else refused).append(reply)
        await queued(gateway, "s", min(number + 1, 4))
    assert [(reply.status, reply.code) for reply in refused] == [(429, "session_queue_full")] * 4
    upstream.release()
    await holding
    for reply in paths:
        assert text_of(await settled(gateway, f"/v1/responses/{reply.json()['id']}")).startswith("work")
    asked = [call.json()["messages"][-1]["content"] for call in upstream.calls]
    assert asked == ["held", *(f"work {number}" for number in range(4))]
    again = await respond(gateway, "work 7", background=True, session_id="s", key="k7")
    assert (again.status, again.replayed) == (200, False)


async def test_started_work_that_lost_its_replica_is_told_so(start, upstream, store_server):
    """I3, I4, G8: it may have had effects: it fails as interrupted, everywhere, and is not run again."""
    gateways = [await start(), await start()]
    path, made = await background(gateways[0], model="gate_mid", key="k")
    await upstream.until(lambda up: bool(up.calls and up.calls[0].sent))
    async with EventReader(gateways[1].http, "GET", f"{gateways[1].url}{path}?stream=true") as stream:
        begun = await stream.take(5)
        end_lease(store_server)
        ended = await stream.rest()
    assert names(ended) == ["response.failed"]
    assert ended[0].json()["response"]["error"]["code"] == "interrupted"
    for gateway in gateways:
        kept = (await gateway.request("GET", path)).json()
        assert (kept["status"], kept["error"]) == ("failed", ended[0].json()["response"]["error"])
        assert events_of((await gateway.request("GET", path + "?stream=true")).body) == [*begun, *ended]
        again = await respond(gateway, "one two", background=True, model="gate_mid", key="k")
        assert (again.json()["id"], again.json()["status"], again.replayed) == (made["id"], "failed", True)
    upstream.release()
    await upstream.until(lambda up: up.running == 0)
    assert (await gateways[0].request("GET", path)).json()["status"] == "failed"
    assert upstream.count == 1


async def test_accepted_work_outlives_a_drained_replica(start, upstream):
    """I4, J6: what a replica that shuts down has not started is left to the others, with its place in line lost."""
    leaving, staying = await start(vouch_ms=1_000), await start(vouch_ms=1_000)
    holding = await hold(staying, upstream, "held", session_id="s")
    path, _ = await background(leaving, "work", session_id="s")
    await queued(staying, "s")
    leaving.coordinator.drain()
    refused = await respond(leaving, "more", background=True)
    assert (refused.status, refused.code) == (503, "gateway_draining")
    upstream.release()
    await holding
    assert text_of(await settled(staying, path)) == "work"
    assert upstream.count == 2


async def test_work_of_a_deleted_session_is_not_started(start, upstream, store_server):
    """E3, G4, E4: it waits for what is gone: it ends, nothing runs, and its text leaves the store."""
    gateway = await start(lease_ms=1_500)
    holding = await hold(gateway, upstream, "held", session_id="s")
    path, _ = await background(gateway, "the-text-that-must-go", session_id="s", key="k")
    await queued(gateway, "s")
    assert (await gateway.delete("s")).code == "session_busy"
    assert (await gateway.delete("s", "?force=true")).status == 200
    await holding
    assert (await gateway.request("GET", path)).status == 404
    await until(lambda: store_server.cli("ZCARD", ACCEPTED) == 0, what="nothing accepted")
    assert not any("the-text-that-must-go" in repr(entry) for entry in dump(store_server).values())
    again = await respond(gateway, "the-text-that-must-go", background=True, session_id="s", key="k")
    assert (again.status, again.json()["status"], again.replayed) == (200, "failed", True)
    assert upstream.count == 1
