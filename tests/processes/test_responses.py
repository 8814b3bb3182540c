"""Responses, runs and their streams over replicas that share nothing but the store, and that die."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.events import EventReader, events_of, numbers
from tests.support.waiting import until

LEASE_S = 1.5
LEASE = ("--lease-ttl", "1500ms")


async def respond(fleet, text, *, at=None, model="ok", key=None, session_id=None, **body):
    """`POST /v1/responses`."""
    asked: dict[str, Any] = {"model": model, "input": text, **body}
    return await fleet.request("POST", "/v1/responses", at=at, json=asked, key=key, session_id=session_id)


async def status_of(fleet, wanted, *, at=None):
    """The status of a response."""
    return (await fleet.request("GET", f"/v1/responses/{wanted}", at=at)).json()["status"]


async def reached(fleet, wanted, status, *, at=None):
    """Wait until a response is told in this status."""

    async def there() -> bool:
        return await status_of(fleet, wanted, at=at) == status

    await until(there, what=f"{wanted} {status}", timeout_s=10)


def said(fleet):
    """The texts that the last upstream call was given."""
    return [message["content"] for message in fleet.upstream.calls[-1].json()["messages"]]


async def test_a_chain_resolves_at_once_at_the_next_replica(fleet):
    """B47, I2, H3: 200 responses, streamed and whole, each at another replica than the one before: each finds its
    history with the last byte of the one before."""
    found = 0
    for opening in range(20):
        history, previous = [], {}
        for turn in range(10):
            text = f"opening {opening}, turn {turn}"
            reply = await respond(fleet, text, stream=turn % 2 == 0, **previous)
            assert reply.status == 200, reply.body
            assert said(fleet) == [*history, text]
            made = events_of(reply.body)[-1].json()["response"] if turn % 2 == 0 else reply.json()
            history, previous = [*history, text, text], {"previous_response_id": made["id"]}
            found += 1
    assert found == fleet.upstream.count == 200


async def test_two_from_one_response_are_two_branches(fleet):
    """I2: ten times two at once, at two replicas: each has exactly the history that it named."""
    for number in range(10):
        first = (await respond(fleet, f"opening {number}")).json()["id"]
        replies = await asyncio.gather(
            *(respond(fleet, f"side {n}", at=n, model="slow:0.01", previous_response_id=first) for n in (0, 1))
        )
        assert len({reply.session_id for reply in replies}) == 2
        calls = [[each["content"] for each in call.json()["messages"]] for call in fleet.upstream.calls[-2:]]
        assert sorted(calls) == [[f"opening {number}"] * 2 + [f"side {n}"] for n in (0, 1)]


@asynccontextmanager
async def streaming(fleet, kind):
    """A stream of that kind, begun at the first replica, and a way to read it from its start at any other."""
    text, options = "one two", {"model": "gate_mid"}
    path, asked, headers = "/v1/responses", {**options, "input": text, "stream": True}, {"Idempotency-Key": kind}
    if kind == "chat":
        path = "/v1/chat/completions"
        asked = {**options, "messages": [{"role": "user", "content": text}], "stream": True}
    if kind == "run":
        made = (await fleet.request("POST", "/v1/runs", at=0, json={**options, "input": text})).json()
        path = f"/v1/runs/{made['id']}/events"

    def read(at, method="GET", where=path):
        posted = {"json": asked, "headers": headers} if method == "POST" else {}
        return EventReader(fleet.http, method, fleet.url(at) + where, **posted)

    async with read(0, "GET" if kind == "run" else "POST") as stream:
        begun = await stream.take(1 if kind == "chat" else 5)
        if kind == "response":
            path = f"/v1/responses/{begun[0].json()['response']['id']}?stream=true"
        yield begun, lambda at: read(at, "POST" if kind == "chat" else "GET", path)


async def test_a_killed_producer_ends_its_streams_once(start_fleet):
    """G6, G8, H5, H6: kill -9 in the middle of streams of all kinds: who reads at another replica gets one last event
    within a lease, and whoever comes later, anywhere, is told the same; nothing runs again."""
    fleet = start_fleet(3, *LEASE)
    async with AsyncExitStack() as stack:
        streams = {
            kind: await stack.enter_async_context(streaming(fleet, kind)) for kind in ("chat", "response", "run")
        }
        readers = {kind: await stack.enter_async_context(again(1)) for kind, (_, again) in streams.items()}
        for kind, (begun, _) in streams.items():
            assert await readers[kind].take(len(begun)) == begun
        fleet.replicas[0].kill()
        killed = time.monotonic()
        ends = {kind: await reader.rest() for kind, reader in readers.items()}
        assert time.monotonic() - killed < LEASE_S + 1
    for kind, (begun, again) in streams.items():
        (end,) = ends[kind]
        error = end.json()["error"] if kind == "chat" else end.json()["response"]["error"]
        assert (kind, error["code"]) == (kind, "unknown_execution" if kind == "chat" else "interrupted")
        for at in (1, 2):
            async with again(at) as later:
                if kind == "chat":
                    assert later.response.status == 409
                    assert (await later.response.json())["error"]["code"] == "unknown_execution"
                else:
                    assert await later.rest() == [*begun, end]
    await fleet.upstream.until(lambda up: up.aborted == 3)
    assert fleet.upstream.count == 3


async def test_accepted_work_of_a_killed_replica_is_started_once(start_fleet):
    """I4: accepted while its conversation was busy, and never started: one of the others starts it, once."""
    fleet = start_fleet(3, *LEASE)
    holding = await fleet.hold("held", session_id="s", at=1)
    made = [
        (await respond(fleet, f"work {n}", at=0, session_id="s", background=True, key=f"k{n}")).json() for n in range(2)
    ]
    await fleet.queued("s", 2, at=1)
    assert [response["status"] for response in made] == ["queued"] * 2
    fleet.replicas[0].kill()
    key = f"coord1:{{default}}:turn:{made[0]['id'][-32:]}"
    dead = fleet.server.cli("HGET", key, "replica")
    await until(lambda: fleet.server.cli("HGET", key, "replica") != dead, what="another replica's claim", timeout_s=8)
    fleet.upstream.release()
    await holding
    for n, response in enumerate(made):
        await reached(fleet, response["id"], "completed", at=2)
        again = await respond(fleet, f"work {n}", at=1, session_id="s", background=True, key=f"k{n}")
        assert (again.json()["id"], again.replayed) == (response["id"], True)
    assert (fleet.upstream.count, fleet.upstream.max_overlap) == (3, 1)
    asked = [call.json()["messages"][-1]["content"] for call in fleet.upstream.calls[1:]]
    assert sorted(asked) == ["work 0", "work 1"]


async def test_started_work_of_a_killed_replica_is_interrupted(start_fleet):
    """I3, I4, G6: within a lease every other replica says so, a retry too, and the conversation goes on; it is not run
    again."""
    fleet = start_fleet(3, *LEASE)
    made = (await respond(fleet, "work", at=0, model="gate", session_id="s", background=True, key="k")).json()["id"]
    run_id = made.replace("resp_", "run_")
    await fleet.upstream.until(lambda up: up.running == 1)
    fleet.replicas[0].kill()
    killed = time.monotonic()
    await reached(fleet, made, "failed", at=1)
    assert time.monotonic() - killed < LEASE_S + 1
    for at in (1, 2):
        assert (await fleet.request("GET", f"/v1/runs/{run_id}", at=at)).json()["status"] == "interrupted"
        told = (await fleet.request("GET", f"/v1/responses/{made}", at=at)).json()
        assert told["error"]["code"] == "interrupted"
        again = await respond(fleet, "work", at=at, model="gate", session_id="s", background=True, key="k")
        assert (again.json()["id"], again.json()["status"], again.replayed) == (made, "failed", True)
    assert (await fleet.chat("next", session_id="s", at=2)).status == 200
    assert fleet.upstream.count == 2


async def test_work_is_stopped_from_any_replica(fleet):
    """G7, B34: started at one, stopped at another, read at the third; the upstream is closed."""
    made = (await respond(fleet, "one two", at=0, model="gate_mid", background=True)).json()["id"]
    async with EventReader(fleet.http, "GET", f"{fleet.url(2)}/v1/responses/{made}?stream=true") as stream:
        begun = await stream.take(5)
        stopped = (await fleet.request("POST", f"/v1/responses/{made}/cancel", at=1)).json()
        assert stopped["status"] == "cancelled"
        (end,) = await stream.rest()
    assert numbers([*begun, end]) == [*range(6)]
    assert end.json()["response"]["status"] == "cancelled"
    await fleet.upstream.until(lambda up: up.aborted == 1)
    assert {await status_of(fleet, made, at=at) for at in range(3)} == {"cancelled"}


async def test_a_stopped_replica_leaves_accepted_work_to_the_others(start_fleet):
    """J6, I4: SIGTERM: what it had not started is started elsewhere, once; what ran is interrupted."""
    fleet = start_fleet(2, *LEASE, "--drain-timeout", "300ms")
    holding = await fleet.hold("held", session_id="s", at=1)
    waiting = (await respond(fleet, "work", at=0, session_id="s", background=True)).json()["id"]
    await fleet.queued("s", at=1)
    running = (await respond(fleet, "running", at=0, model="gate", background=True)).json()["id"]
    await fleet.upstream.until(lambda up: up.running == 2)
    assert await asyncio.to_thread(fleet.replicas[0].stop) == 0
    told = (await fleet.request("GET", f"/v1/responses/{running}", at=1)).json()
    assert (told["status"], told["error"]["code"]) == ("failed", "interrupted")
    fleet.upstream.release()
    await holding
    await reached(fleet, waiting, "completed", at=1)
    assert fleet.upstream.count == 3
