"""Streams that are cut, and taken up again at another replica: nothing lost, repeated or reordered."""

import asyncio
import time

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import end_lease
from tests.adapter.responding import respond, run
from tests.support.cutter import StreamCutter
from tests.support.events import EventReader, events_of, names, numbers

TEXT = "one two three"
KINDS = ("chat", "response", "run")


def asked(kind, model="slow:0.002", text=TEXT):
    """Path and body of a request whose stream can be resumed; a run's stream is begun by another request."""
    if kind == "chat":
        return "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    return "/v1/responses", {"model": model, "input": text, "stream": True}


async def begin(gateway, kind, url, key, model="slow:0.002", text=TEXT):
    """A reader of a new stream at `url`, and how to go on with it behind an event: method, path, body, headers."""
    headers = {"Idempotency-Key": key}
    if kind == "run":
        made = (await run(gateway, text, model=model, key=key)).json()
        path = f"/v1/runs/{made['id']}/events"
        return EventReader(gateway.http, "GET", url + path), ("GET", path, None, {})
    path, body = asked(kind, model, text)
    return EventReader(gateway.http, "POST", url + path, json=body, headers=headers), ("POST", path, body, headers)


def going_on(kind, way, received):
    """The request that goes on behind what was received."""
    method, path, body, headers = way
    if kind == "response" and received:
        found = received[0].json()["response"]["id"]
        return "GET", f"/v1/responses/{found}?stream=true&starting_after={received[-1].number}", None, {}
    last = {"Last-Event-ID": str(received[-1].number)} if received else {}
    return method, path, body, {**headers, **last}


async def resume(gateway, kind, way, received):
    """The rest of the stream at that replica."""
    method, path, body, headers = going_on(kind, way, received)
    reply = await gateway.request(method, path, json=body, headers=headers)
    assert reply.status == 200, reply.body
    return events_of(reply.body)


@pytest.mark.parametrize("kind", KINDS)
async def test_cut_anywhere_it_goes_on_elsewhere(start, upstream, kind):
    """H2, F3: cut by a proxy at every event boundary, while it runs, and resumed at the other replica: put together it
    is what was not cut."""
    gateways = [await start(), await start()]
    port = int(gateways[0].url.rpartition(":")[2])
    total = len(await resume(gateways[0], kind, (await begin(gateways[0], kind, gateways[0].url, "k"))[1], []))

    async def cut_and_resumed(after):
        async with StreamCutter(port, after=after) as line:
            reader, way = await begin(gateways[0], kind, f"http://127.0.0.1:{line.port}", f"k{after}")
            received = []
            if after:
                async with reader as stream:
                    received = await stream.rest()
            assert len(received) == after
        rest = await resume(gateways[1], kind, way, received)
        whole = await resume(gateways[0], kind, way, [])
        assert received + rest == whole
        assert numbers(whole) == [*range(total)]

    count = upstream.count
    await asyncio.gather(*(cut_and_resumed(after) for after in range(total + 1)))
    assert upstream.count == count + total + 1
    assert upstream.aborted == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["ok", "tools", "weird", "big:70000"])
async def test_ended_it_goes_on_behind_any_event(start, upstream, kind, model):
    """H2, F1, J4: the same afterwards, also where its bytes are odd or many."""
    gateways = [await start(), await start()]
    reader, way = await begin(gateways[0], kind, gateways[0].url, "k", model)
    async with reader as stream:
        whole = await stream.rest()
    first = 1 if (kind, model) == ("chat", "weird") else 0  # there the upstream's comment comes first
    assert numbers(whole) == [*range(first, first + len(whole))]
    for after in range(len(whole)):
        assert await resume(gateways[1], kind, way, whole[: after + 1]) == whole[after + 1 :]
    assert upstream.count == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_readers_at_several_places(start, upstream, kind):
    """H2, B63: three at three places on two replicas; one leaves, and comes back; each has all of it, once."""
    gateways = [await start(), await start()]
    text = " ".join(f"w{number}" for number in range(120))
    reader, way = await begin(gateways[0], kind, gateways[0].url, "k", "slow:0.003", text)
    async with reader as first:
        begun = await first.take(10)

        async def follow(gateway, behind, leave_after=None):
            method, path, body, headers = going_on(kind, way, begun[:behind])
            async with EventReader(gateway.http, method, gateway.url + path, json=body, headers=headers) as stream:
                found = begun[:behind] + await stream.take(leave_after or 1_000)
            return found + (await resume(gateways[1], kind, way, found) if leave_after else [])

        rest, *others = await asyncio.gather(
            first.rest(),
            follow(gateways[1], 0),
            follow(gateways[1], 3, leave_after=40),
            follow(gateways[0], 10),
            follow(gateways[1], 7, leave_after=1),
        )
    whole = begun + rest
    assert numbers(whole) == [*range(len(whole))]
    assert others == [whole] * 4
    assert (upstream.count, upstream.aborted) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_turn_does_not_mix_with_it(start, upstream, kind):
    """B63, H2: the next turn of the same conversation has its own events from 0; the first is resumed as it was."""
    gateways = [await start(), await start()]
    streams = []
    for number in range(2):
        path, body = asked("chat" if kind == "chat" else "response", "ok", f"turn {number}")
        headers = {"Idempotency-Key": f"k{number}", "X-Hermes-Session-Id": "s"}
        async with EventReader(
            gateways[number].http, "POST", gateways[number].url + path, json=body, headers=headers
        ) as stream:
            streams.append((("POST", path, body, headers), await stream.rest()))
    for posted, whole in streams:
        assert numbers(whole) == [*range(len(whole))]
        found = whole[0].json()["response"]["id"].replace("resp_", "run_") if kind == "run" else ""
        way = ("GET", f"/v1/runs/{found}/events", None, {}) if found else posted
        assert await resume(gateways[1], kind, way, whole[:2]) == whole[2:]


@pytest.mark.parametrize("kind", ["response", "run"])
async def test_a_stream_whose_turn_died_has_one_end(start, upstream, store_server, kind):
    """G6, G8, H5: its readers are told at the end of the lease, and everybody who resumes it later is told the same."""
    gateways = [await start(), await start()]
    made = await run(gateways[0], TEXT, model="gate_mid")
    path = f"/v1/runs/{made.json()['id']}/events"
    if kind == "response":
        path = f"/v1/responses/{made.json()['response_id']}?stream=true"
    async with EventReader(gateways[1].http, "GET", gateways[1].url + path) as stream:
        begun = await stream.take(5)
        end_lease(store_server)
        died = time.monotonic()
        (end,) = await stream.rest()
        assert time.monotonic() - died < 1.5
    assert (end.number, end.name, end.json()["response"]["error"]["code"]) == (5, "response.failed", "interrupted")
    assert end.json()["sequence_number"] == 5
    upstream.release()
    await upstream.until(lambda up: up.running == 0)
    whole = [*begun, end]
    for gateway in gateways:
        for after in range(-1, 6):
            reply = await gateway.request("GET", path, headers={"Last-Event-ID": str(after)} if after >= 0 else {})
            assert events_of(reply.body) == whole[after + 1 :]
    assert upstream.count == 1


@pytest.mark.parametrize("stream_at", [0, 1])
async def test_a_cancelled_stream_has_one_end(start, upstream, stream_at):
    """G8, H5: its own client, who watches elsewhere, and who comes later are told the same event under one number."""
    gateways = [await start(lease_ms=1_500), await start(lease_ms=1_500)]
    reader, way = await begin(gateways[0], "response", gateways[0].url, "k", "gate_mid")
    async with reader as own:
        begun = await own.take(5)
        method, path, body, headers = going_on("response", way, begun[:1])
        at = gateways[stream_at]
        async with EventReader(at.http, method, at.url + path, json=body, headers=headers) as watching:
            seen = await watching.take(4)
            found = begun[0].json()["response"]["id"]
            stopped = await gateways[1].request("POST", f"/v1/responses/{found}/cancel")
            assert stopped.json()["status"] == "cancelled"
            ends = [await own.rest(), await watching.rest()]
    later = await resume(gateways[1], "response", way, [*begun[:1], *seen])
    assert ends == [later] * 2
    (end,) = later
    assert (end.number, end.json()["sequence_number"], end.json()["response"]["status"]) == (5, 5, "cancelled")


async def test_a_reader_that_cannot_go_on_here_goes_on_elsewhere(start, upstream):
    """H6, J6: an error event that is not the turn's has no number of its own: behind it nothing is missed."""
    gateways = [await start(), await start()]
    for kind in KINDS:
        leaving = await start()
        reader, way = await begin(gateways[0], kind, gateways[0].url, f"k{kind}", "gate_mid")
        async with reader as first:
            begun = await first.take(1 if kind == "chat" else 5)
            method, path, body, headers = going_on(kind, way, begun[:1])
            async with EventReader(leaving.http, method, leaving.url + path, json=body, headers=headers) as stream:
                seen = begun[:1] + (await stream.take(len(begun) - 1))
                leaving.coordinator.drain()
                if len(begun) == 1:
                    upstream.release()
                *_, told = await stream.rest()
            if kind != "chat":
                assert (told.number, told.name, told.json()["code"]) == (None, "error", "gateway_draining")
                assert told.json()["sequence_number"] == seen[-1].number
            upstream.release()
            rest = await first.rest()
        assert seen + await resume(gateways[1], kind, way, seen) == begun + rest


async def test_what_is_not_kept_is_said_before_the_stream_opens(start, upstream, store_server):
    """H6: 410 as JSON, never a stream with a gap: a lost log, a place that never was, an answer too large."""
    gateways = [await start(), await start(max_stored_bytes=2_000)]
    reply = await respond(gateways[0], TEXT, stream=True, key="k")
    events = events_of(reply.body)
    path = f"/v1/responses/{events[0].json()['response']['id']}?stream=true"
    for number in (len(events), 10**11):
        gone = await gateways[1].request("GET", f"{path}&starting_after={number}")
        assert (gone.status, gone.code) == (410, "events_lost")
    for wrong in ("-1", "1.5", "x", "9" * 13, ""):
        refused = await gateways[1].request("GET", f"{path}&starting_after={wrong}")
        assert (refused.status, refused.code) == (400, "invalid_starting_after"), wrong
    store_server.cli("DEL", *store_server.cli("KEYS", "*:events:*"))
    gone = await gateways[1].request("GET", path + "&starting_after=3")
    assert (gone.status, gone.code, gone.headers["x-should-retry"]) == (410, "events_lost", "false")
    told = events_of((await gateways[1].request("GET", path)).body)
    assert told[-1].json()["response"] == events[-1].json()["response"]
    large = events_of((await respond(gateways[1], "word " * 1_000, stream=True)).body)
    path = f"/v1/responses/{large[0].json()['response']['id']}?stream=true"
    gone = await gateways[0].request("GET", path + "&starting_after=3")
    assert (gone.status, gone.code) == (410, "events_lost")


async def test_a_key_that_is_free_does_not_begin_in_the_middle(gateway, upstream):
    """H6, F7: who wants to go on with a stream of which nothing is kept is told so; nothing runs, its key is free."""
    for kind in ("chat", "response"):
        path, body = asked(kind, "ok")
        headers = {"Idempotency-Key": f"k{kind}", "Last-Event-ID": "3"}
        gone = await gateway.request("POST", path, json=body, headers=headers)
        assert (gone.status, gone.code) == (410, "events_lost")
        assert (await gateway.request("POST", path, json=body, key=f"k{kind}")).replayed is False
    assert upstream.count == 2


async def test_a_stream_is_its_tenants(start):
    """B4: neither its id nor its key leads another tenant to it."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one,beta:two"))
    made = events_of((await respond(gateway, TEXT, stream=True, key="k", api_key="one")).body)
    path = f"/v1/responses/{made[0].json()['response']['id']}?stream=true&starting_after=3"
    assert (await gateway.request("GET", path, api_key="two")).status == 404
    own = await respond(gateway, TEXT, stream=True, key="k", api_key="two")
    assert (own.replayed, names(events_of(own.body)) == names(made)) == (False, True)


async def test_a_fast_stream_costs_few_round_trips(start_behind, proxy, upstream):
    """H2: a thousand words a second go to the store at most 50 times a second, whatever else a replica asks."""
    gateway = await start_behind()
    await gateway.chat("warm", key="warm")
    for kind in ("chat", "response"):
        text = " ".join(f"w{number}" for number in range(1_000))
        reader, _ = await begin(gateway, kind, gateway.url, f"k{kind}", "slow:0.0001", text)
        before, began = proxy.round_trips, time.monotonic()
        async with reader as stream:
            received = await stream.rest()
        seconds = time.monotonic() - began
        assert len(received) > 1_000
        assert (proxy.round_trips - before - 3) / seconds <= 50, seconds
