"""Event streams of chat completions: their form, their end, and clients that leave."""

import asyncio
import json
import re
import time

import pytest

from gateway_adapter import disconnects, event_stream
from tests.adapter.gateway import hold, session_path
from tests.support.answers import weird_stream
from tests.support.waiting import until


def without_numbers(body):
    """A stream without the `id:` lines that the gateway puts before the events of one that can be resumed."""
    return re.sub(rb"(?m)^id: \d+\n", b"", body)


class Listener:
    """A client that reads a stream piece by piece: `async with Listener(gateway, ...) as stream`."""

    def __init__(self, gateway, text, *, headers=None, **body):
        self._content = {"messages": [{"role": "user", "content": text}], "stream": True, **body}
        self._gateway = gateway
        self._headers = headers or {}
        self.received = b""

    async def __aenter__(self):
        url = f"{self._gateway.url}/v1/chat/completions"
        self.response = await self._gateway.http.post(url, json=self._content, headers=self._headers)
        return self

    async def __aexit__(self, *error):
        self.response.close()

    async def until(self, text):
        """Read until this has come."""
        while text not in self.received:
            piece = await asyncio.wait_for(self.response.content.readany(), 5)
            assert piece, self.received
            self.received += piece

    async def rest(self):
        """Read to the end."""
        self.received += await self.response.read()
        return self.received


async def test_a_stream_is_what_openai_clients_expect(gateway):
    """H1: SSE with the session in its headers, chunks, and `[DONE]` as the last event."""
    reply = await gateway.chat("one two three", stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.session_id
    *chunks, done = reply.events()
    assert done == "[DONE]"
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert {json.loads(chunk)["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert reply.text() == "one two three"


async def test_the_headers_come_first(gateway, upstream):
    """H1: the session is known before the first word is."""
    async with Listener(gateway, "one two", model="gate_mid") as stream:
        assert stream.response.status == 200
        assert stream.response.headers["X-Hermes-Session-Id"].startswith("ses_i")
        await stream.until(b"one")
        assert b"two" not in stream.received
        upstream.release()
        assert (await stream.rest()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("key", [None, "k"])
async def test_an_idle_stream_is_kept_alive_with_comments(gateway, upstream, monkeypatch, key):
    """H1, H6: in silence the client gets comments, which are no part of the answer and of its replay."""
    monkeypatch.setattr(event_stream, "_IDLE_S", 0.05)
    headers = {"Idempotency-Key": key} if key else {}
    async with Listener(gateway, "one two", model="gate_mid", headers=headers) as stream:
        await stream.until(b": keep-alive\n\n: keep-alive\n\n")
        upstream.release()
        received = await stream.rest()
    expected = bytes(upstream.calls[0].sent)
    assert without_numbers(received.replace(b": keep-alive\n\n", b"")) == expected
    if key:
        replay = await gateway.chat("one two", model="gate_mid", stream=True, key=key)
        assert without_numbers(replay.body) == expected


@pytest.mark.parametrize("key", [None, "k"])
async def test_words_arrive_as_they_are_said(gateway, upstream, key):
    """H1: nothing is held back until the end, with and without a key; only `[DONE]` waits for the commit."""
    headers = {"Idempotency-Key": key} if key else {}
    async with Listener(gateway, "one two three four", model="slow:0.05", headers=headers) as stream:
        for word in (b"one", b"two", b"three"):
            await stream.until(word)
            assert upstream.running == 1
        await stream.rest()


@pytest.mark.parametrize(("stream", "key"), [(False, None), (True, None), (False, "k"), (True, "k")])
async def test_the_commit_precedes_the_last_byte(start, stream, key):
    """H3: whoever has read the whole answer finds it in the history, on any replica, 25 times in a row."""
    gateways = [await start(), await start()]
    for turn in range(25):
        reply = await gateways[turn % 2].chat(f"say {turn}", session_id="s", stream=stream, key=key and f"{key}{turn}")
        assert reply.status == 200
        other = gateways[(turn + 1) % 2]
        shown, kept = await asyncio.gather(other.session("s"), other.request("GET", "/api/sessions/s/messages"))
        assert (shown.json()["turns"], shown.json()["live"]) == (turn + 1, [])
        assert len(kept.json()["data"]) == 2 * (turn + 1)


async def test_the_last_byte_waits_for_the_commit(start_own, own_server, upstream):
    """H3: while the store does not confirm, neither a whole answer nor the `[DONE]` of a stream is sent."""
    gateway = await start_own()
    whole = [await hold(gateway, upstream, "one", model="gate", key=key) for key in (None, "k")]
    async with Listener(gateway, "one two", model="gate_mid") as stream:
        await stream.until(b"one")
        own_server.freeze()
        upstream.release()
        await stream.until(b'"stop"')
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.until(b"[DONE]"), 0.3)
        assert not any(asked.done() for asked in whole)
        own_server.thaw()
        await stream.until(b"[DONE]")
    assert [(await asked).status for asked in whole] == [200, 200]


@pytest.mark.parametrize("model", ["reset_mid", "truncated"])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_failure_within_a_stream_is_its_last_event(gateway, upstream, model, key):
    """H5: what was said, then an error event, no `[DONE]`, then a clean end; nothing of it enters the history."""
    reply = await gateway.chat("one two", model=model, session_id="s", stream=True, key=key)
    assert reply.status == 200
    first, error = reply.events()
    assert '"one"' in first
    assert json.loads(error)["error"]["code"] == "upstream_failed"
    assert (await gateway.request("GET", session_path("s") + "/messages")).json()["data"] == []
    if key:
        again = await gateway.chat("one two", model=model, session_id="s", stream=True, key=key)
        assert (again.body, again.replayed) == (reply.body, True)
    assert (await gateway.chat("next", session_id="s")).status == 200


@pytest.mark.parametrize("key", [None, "k"])
async def test_bytes_and_ids_are_the_upstreams(gateway, upstream, key):
    """H7, J4: a stream passes byte for byte, comments and odd line ends included, and is replayed so."""
    expected = b"".join(weird_stream(1))
    for _ in range(2 if key else 1):
        reply = await gateway.chat("hello", model="weird", stream=True, key=key)
        assert (without_numbers(reply.body) if key else reply.body) == expected
    assert upstream.count == 1


@pytest.mark.parametrize("model", ["hang", "hang_mid"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_client_that_leaves_in_silence_ends_its_turn(
    gateway, upstream, store_server, model, stream, session_id
):
    """H4: without a key the upstream is closed within two seconds, the lease is free, and no half turn is kept."""
    asking = asyncio.create_task(gateway.chat("one two", model=model, stream=stream, session_id=session_id))
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent) == (model == "hang_mid"))
    asking.cancel()
    left = time.monotonic()
    await upstream.until(lambda up: up.aborted == 1)
    assert time.monotonic() - left < 2
    await until(lambda: store_server.cli("ZCARD", "coord1:{default}:running") == 0)
    if session_id:
        shown = (await gateway.session(session_id)).json()
        assert (shown["live"], shown["turns"]) == ([], 0)
        assert (await gateway.request("GET", session_path(session_id) + "/messages")).json()["data"] == []
        assert (await gateway.chat("next", session_id=session_id)).status == 200


@pytest.mark.parametrize("model", ["gate", "gate_mid"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_keyed_turn_goes_on_without_its_client(start, upstream, monkeypatch, model, stream):
    """H4: with a key the turn is finished, its answer is in the history, and a retry on any replica fetches it."""
    monkeypatch.setattr(disconnects, "_LOOK_EVERY_S", 0.01)
    gateways = [await start(), await start()]
    options = {"model": model, "stream": stream, "session_id": "s", "key": "k"}
    asking = asyncio.create_task(gateways[0].chat("one two", **options))
    await upstream.until(lambda up: up.running == 1 and bool(up.calls[0].sent) == (model == "gate_mid"))
    asking.cancel()
    await asyncio.wait([asking])
    await asyncio.sleep(0.1)  # ten looks at the connections
    assert (upstream.running, upstream.aborted) == (1, 0)
    upstream.release()
    reply = await gateways[1].chat("one two", **options)
    assert (reply.status, reply.text(), reply.replayed) == (200, "one two", True)
    assert without_numbers(reply.body) == bytes(upstream.calls[0].sent)
    assert upstream.count == 1
    kept = (await gateways[1].request("GET", "/api/sessions/s/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["one two", "one two"]


@pytest.mark.parametrize(("on_disconnect", "key", "finished"), [("cancel", "k", False), ("finish", None, True)])
async def test_what_becomes_of_a_turn_can_be_set(start, upstream, monkeypatch, on_disconnect, key, finished):
    """H4: `on_disconnect=cancel` ends keyed turns too, `finish` finishes those without a key."""
    monkeypatch.setattr(disconnects, "_LOOK_EVERY_S", 0.01)
    gateway = await start(on_disconnect=on_disconnect)
    asking = asyncio.create_task(gateway.chat("hello", model="gate", session_id="s", key=key))
    await upstream.until(lambda up: up.running == 1)
    asking.cancel()
    await asyncio.wait([asking])
    if finished:
        await asyncio.sleep(0.1)  # ten looks at the connections
        upstream.release()
    await upstream.until(lambda up: up.running == 0)
    assert upstream.aborted == (not finished)

    async def settled():
        return (await gateway.session("s")).json()["live"] == []

    await until(settled)
    assert (await gateway.session("s")).json()["turns"] == finished
    if key:
        again = await gateway.chat("hello", model="gate", session_id="s", key=key)
        assert (again.status, again.code) == (409, "turn_cancelled")


async def test_a_slow_reader_loses_nothing(gateway, upstream):
    """H1: a client that reads late gets all of a long answer, in order."""
    async with Listener(gateway, "hello", model="big:3000000") as stream:
        await upstream.until(lambda up: bool(up.calls and up.calls[0].sent))
        await asyncio.sleep(0.1)
        received = await stream.rest()
    assert received == bytes(upstream.calls[0].sent)
