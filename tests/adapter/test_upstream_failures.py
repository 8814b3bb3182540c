"""Every way in which an upstream can fail, asked for with a key and asked again."""

import asyncio
import json

import pytest

from tests.adapter.gateway import dump
from tests.support.answers import RETRY_AFTER_S, SECRET
from tests.support.process import LOCALHOST, free_port
from tests.support.tcp import TcpService
from tests.support.waiting import until

FREES = {  # what proves that nothing ran: mode, status, code, headers
    "400": ("status:400", 400, None, {}),
    "404": ("no-such-model", 404, "model_not_found", {}),
    "409": ("status:409", 409, None, {}),
    "422": ("status:422", 422, None, {}),
    "429": ("status:429", 429, "rate_limit_exceeded", {"Retry-After": str(RETRY_AFTER_S)}),
    "503": ("status:503", 503, None, {"Retry-After": "1"}),
    "401": ("status:401", 502, "upstream_auth_failed", {"x-should-retry": "false"}),
    "403": ("status:403", 502, "upstream_auth_failed", {"x-should-retry": "false"}),
}
RECORDED = {  # what may have run: mode, and whether a stream has begun by then
    "500": ("status:500", False),
    "502": ("status:502", False),
    "504": ("status:504", False),
    "reset before a byte": ("reset_before", False),
    "reset after a byte": ("reset_mid", True),
    "truncated": ("truncated", True),
    "malformed": ("malformed", True),
    "silence": ("hang", False),
    "silence after a byte": ("hang_mid", True),
}


@pytest.mark.parametrize("case", FREES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_refusal_before_anything_ran_frees_the_key(gateway, upstream, store_server, case, stream, session_id):
    """F6, H1, J10: it is passed on as plain JSON, the key is free in that step, and the same request runs again."""
    mode, status, code, headers = FREES[case]
    options = {"model": mode, "stream": stream, "key": "k", "session_id": session_id}
    for calls in (1, 2):
        refused = await gateway.chat("hello", **options)
        assert (refused.status, refused.code, refused.replayed) == (status, code, False)
        assert refused.headers["Content-Type"].startswith("application/json")
        assert {name: refused.headers.get(name) for name in headers} == headers
        assert upstream.count == calls
        assert not any(b":idempotency:" in key for key in dump(store_server))
        assert store_server.cli("ZCARD", "coord1:{default}:running") == 0
    upstream.mode = "ok"
    again = await gateway.chat("hello", **options)
    assert (again.status, again.replayed, upstream.count) == (200, False, 3)


@pytest.mark.parametrize("case", ["400", "404", "429"])
async def test_the_upstreams_own_words_pass(gateway, upstream, case):
    """J10: its 4xx reaches the client as it was sent."""
    refused = await gateway.chat("hello", model=FREES[case][0])
    assert refused.body == bytes(upstream.calls[0].sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_is_not_there(start, upstream, stream):
    """F6, J10: a refused connection is 502 `upstream_unavailable` with a time to wait, and the key stays free."""
    gateway = await start(upstream=f"http://{LOCALHOST}:{free_port()}/v1")
    refused = await gateway.chat("hello", key="k", stream=stream)
    assert (refused.status, refused.code) == (502, "upstream_unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    assert "x-should-retry" not in refused.headers
    other = await start()
    assert (await other.chat("hello", key="k", stream=stream)).status == 200
    assert upstream.count == 1


@pytest.mark.parametrize("case", RECORDED)
@pytest.mark.parametrize(("stream", "session_id"), [(False, None), (False, "s"), (True, "s")])
async def test_a_failure_after_the_dispatch_is_recorded_and_replayed(start, upstream, case, stream, session_id):
    """F6, H5, J10: it is `upstream_failed`, never run again under its key, and told the same to every retry."""
    gateway = await start(upstream_timeout_ms=250)
    mode, begun = RECORDED[case]
    options = {"model": mode, "key": "k", "session_id": session_id}
    first = await gateway.chat("one two", stream=stream, **options)
    again = await gateway.chat("one two", stream=stream, **options)
    for reply in (first, again):
        if stream and begun:
            assert reply.status == 200
            *said, error = reply.events()
            assert json.loads(error)["error"]["code"] == "upstream_failed"
            assert "[DONE]" not in said
        else:
            assert (reply.status, reply.code) == (502, "upstream_failed")
        assert reply.headers["x-should-retry"] == "false"
        assert "Retry-After" not in reply.headers
        assert reply.session_id
    assert (again.body, first.replayed, again.replayed) == (first.body, False, True)
    other = await gateway.chat("one two", stream=not stream, **options)
    assert (other.status, other.code, other.replayed) == (502, "upstream_failed", True)
    assert upstream.count == 1
    upstream.mode = "ok"
    assert (await gateway.chat("next", session_id=session_id)).status == 200
    if session_id:
        assert [message["content"] for message in upstream.calls[1].json()["messages"]] == ["next"]


@pytest.mark.parametrize("mode", sorted({str(case[0]) for case in (*FREES.values(), *RECORDED.values())}))
async def test_without_a_key_the_session_is_free_again(start, upstream, store_server, mode):
    """F6, G5: whatever went wrong, the lease is given back and the next turn runs."""
    gateway = await start(upstream_timeout_ms=250)
    await asyncio.gather(
        *(gateway.chat("one two", model=mode, session_id="s", stream=stream) for stream in (False, True))
    )
    assert store_server.cli("ZCARD", "coord1:{default}:running") == 0
    assert (await gateway.chat("next", session_id="s")).status == 200
    assert upstream.count == 3


@pytest.mark.parametrize("mode", ["hang", "hang_mid"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_silent_upstream_is_left(start, upstream, mode, stream):
    """G5: after `upstream_timeout` of silence the call is closed."""
    gateway = await start(upstream_timeout_ms=250)
    await gateway.chat("one two", model=mode, stream=stream)
    await upstream.until(lambda up: up.aborted == 1)


async def test_a_turn_has_a_limit(start, upstream, store_server):
    """G5: a turn that goes on talking for ever is ended at `turn_limit`, and that is its recorded answer."""
    gateway = await start(turn_limit_ms=400)
    for stream in (False, True):
        text = "on and on and on and on and on and on and on and on"
        reply = await gateway.chat(text, model="slow:0.1" if stream else "hang", key=f"k{stream}", stream=stream)
        assert b"upstream_failed" in reply.body
        again = await gateway.chat(text, model="slow:0.1" if stream else "hang", key=f"k{stream}", stream=stream)
        assert (again.body, again.replayed) == (reply.body, True)
    assert upstream.count == 2
    await until(lambda: upstream.running == 0)


class Saying(TcpService):
    """An upstream that answers each call with these bytes."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.calls = 0

    async def serve(self, reader, writer):
        """Read one request and answer it."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        self.calls += 1
        writer.write(self.answer)
        await writer.drain()


def answer(status, content_type, body, *headers):
    """An HTTP answer that ends its connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


ODD = {  # what the upstream says, what the client is told, whether the key is free afterwards
    "HTML for 503": (answer("503 Busy", "text/html", b"<h1>inside.example</h1>"), 503, "upstream_unavailable", True),
    "HTML for 429": (answer("429 Slow", "text/html", b"<h1>inside.example</h1>"), 429, "upstream_unavailable", True),
    "HTML for 404": (answer("404 Gone", "text/html", b"<h1>inside.example</h1>"), 404, "upstream_refused", True),
    "HTML for 200": (answer("200 OK", "text/html", b"<h1>inside.example</h1>"), 502, "upstream_failed", False),
    "a list": (answer("200 OK", "application/json", b"[]"), 502, "upstream_failed", False),
    "nothing": (answer("200 OK", "application/json", b""), 502, "upstream_failed", False),
    "a redirect": (
        answer("302 Found", "text/html", b"", "Location: http://inside.example/"),
        502,
        "upstream_failed",
        False,
    ),
    "no HTTP": (b"220 inside.example ESMTP\r\n", 502, "upstream_failed", False),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("stream", [False, True])
async def test_odd_answers_of_the_upstream(start, case, stream):
    """F6, J8: what is no answer becomes an OpenAI error in the gateway's words, and tells nothing of the inside."""
    said, status, code, free = ODD[case]
    async with Saying(said) as saying:
        gateway = await start(upstream=f"http://{LOCALHOST}:{saying.port}/v1")
        for _ in range(2):
            reply = await gateway.chat("hello", key="k", stream=stream)
            assert (reply.status, reply.code) == (status, code)
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
            assert "inside.example" not in f"{reply.body!r}{reply.headers}"
        assert saying.calls == (2 if free else 1)


@pytest.mark.parametrize("mode", ["status:401", "status:403", "status:500", "reset_mid", "malformed", "ok"])
async def test_secrets_stay_inside(start, store_server, upstream, capfd, caplog, mode):
    """J8: neither the gateway's own key nor what the upstream said about it is in an answer, the log or the store."""
    own = "sk-own-key-of-the-gateway"
    gateway = await start(upstream_api_key=own)
    replies = [
        await gateway.chat("one two", model=mode, key=key, stream=stream)
        for stream in (False, True)
        for key in (None, f"k{stream}", f"k{stream}")
    ]
    replies.append(await gateway.request("GET", "/v1/models"))
    assert upstream.calls[0].headers["Authorization"] == f"Bearer {own}"
    printed = "".join(capfd.readouterr()) + caplog.text
    for secret in (SECRET, own):
        for reply in replies:
            assert secret not in f"{reply.body!r}{reply.headers}"
        assert secret not in printed
        assert secret not in str(dump(store_server))
