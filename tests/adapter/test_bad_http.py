"""What is no request at all, and requests for what is not there: refused in the form that clients expect."""

import asyncio

import pytest

from tests.adapter import raw
from tests.adapter.gateway import check_envelope
from tests.adapter.raw import BODY

LONG = b"x" * 20_000
BROKEN = {
    "no HTTP": b"hello there\r\n\r\n",
    "bad method": b"G@T /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "bad version": b"GET /healthz HTTP/9.9.9\r\nHost: x\r\n\r\n",
    "bad header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    "space in a name": b"GET /healthz HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n",
    "bad length": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n",
    "negative length": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "long target": b"GET /" + LONG + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "long header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + LONG + b"\r\n\r\n",
    "long key": raw.post((b"Idempotency-Key", LONG)),
    "long id": raw.post((b"X-Hermes-Session-Id", LONG)),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_is_no_http(gateway, case):
    """J8: also what cannot be parsed is refused in the form that clients expect, and tells nothing of the inside."""
    reply = await raw.send(gateway.url, BROKEN[case])
    assert reply.status in (400, 414, 431)
    assert reply.code == "invalid_http"
    assert b"Traceback" not in reply.body
    assert b"aiohttp" not in reply.body.lower()
    assert reply.headers["x-should-retry"] == "false"


async def test_a_chunked_body_that_breaks(gateway):
    """J8: a chunk that is none is 400, not a failure of the gateway."""
    head = raw.request(
        b"POST /v1/chat/completions HTTP/1.1",
        (b"Host", b"x"),
        (b"Content-Type", b"application/json"),
        (b"Transfer-Encoding", b"chunked"),
    )
    reply = await raw.send(gateway.url, head + b'5\r\n{"mod\r\nzz\r\nhello\r\n0\r\n\r\n')
    assert reply.status == 400
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_client_that_leaves_within_its_body(gateway, caplog):
    """J8: half a request is dropped without a trace in the log."""
    _, host, port = gateway.url.split(":")
    reader, writer = await asyncio.open_connection(host.strip("/"), int(port))
    writer.write(raw.post(body=BODY)[:-10])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    assert (await gateway.request("GET", "/healthz")).status == 200
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def test_unknown_routes_and_methods(gateway):
    """J8: 404 and 405 are envelopes too, the latter with the methods that there are."""
    check_envelope(await gateway.request("POST", "/v1/nothing", json={}), 404, "not_found")
    check_envelope(await gateway.request("GET", "/"), 404, "not_found")
    wrong = await gateway.request("GET", "/v1/chat/completions")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
    assert set(wrong.json()["error"]) == {"message", "type", "param", "code"}
    assert wrong.headers["x-should-retry"] == "false"
