"""Requests that are wrong in themselves: a clear refusal, nothing written, nothing run."""

import io
import json

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter import raw
from tests.adapter.gateway import check_envelope, dump

MAX_BODY = 10_000_000


def body(**fields):
    """A chat request with these fields."""
    return json.dumps({"model": "ok", "messages": [{"role": "user", "content": "hello"}], **fields}).encode()


@pytest.fixture(autouse=True)
def nothing_happens(store_server, upstream):
    """After each test here: no key of any tenant was written, and the upstream was not called."""
    yield
    assert dump(store_server) == {}
    assert upstream.count == 0


BODIES = {
    "empty": (b"", "invalid_json"),
    "no JSON": (b"model=ok", "invalid_json"),
    "half": (b'{"model":"ok"', "invalid_json"),
    "list": (b"[]", "invalid_json"),
    "string": (b'"hello"', "invalid_json"),
    "number": (b"1", "invalid_json"),
    "null": (b"null", "invalid_json"),
    "not UTF-8": (b'{"model":"\xff"}', "invalid_json"),
    "NaN": (body()[:-1] + b',"temperature":NaN}', "invalid_json"),
    "endless number": (body()[:-1] + b',"seed":' + b"9" * 50_000 + b"}", "invalid_json"),
    "deep": (body()[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
    "deep in a message": (
        body(messages=[{"role": "user", "content": "hi"}])[:-2] + b',{"role":' + b"[" * 500,
        "invalid_json",
    ),
    "no model": (b'{"messages":[{"role":"user","content":"hello"}]}', "invalid_model"),
    "model a list": (body(model=["ok"]), "invalid_model"),
    "no messages": (b'{"model":"ok"}', "invalid_messages"),
    "messages a string": (body(messages="hello"), "invalid_messages"),
    "messages empty": (body(messages=[]), "invalid_messages"),
    "messages of strings": (body(messages=["hello"]), "invalid_messages"),
    "message without role": (body(messages=[{"content": "hello"}]), "invalid_messages"),
    "no user message": (body(messages=[{"role": "system", "content": "hello"}]), "invalid_messages"),
    "unknown part": (body(messages=[{"role": "user", "content": [{"type": "smell"}]}]), "invalid_messages"),
    "stream a string": (body(stream="yes"), "invalid_stream"),
    "stream_options a list": (body(stream=True, stream_options=[]), "invalid_stream_options"),
    "user a number": (body(user=7), "invalid_user"),
    "safety_identifier a list": (body(safety_identifier=[]), "invalid_safety_identifier"),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_wrong_body(gateway, case):
    """A6, J8, J10: whatever is wrong with a body is 400 in the form of an OpenAI error."""
    content, code = BODIES[case]
    for key in ((), ((b"Idempotency-Key", b"k"),)):
        check_envelope(await raw.send(gateway.url, raw.post(*key, body=content)), 400, code)


HEADERS = {  # name, values as sent, code
    "key too long": ("Idempotency-Key", [b"x" * 256], "invalid_idempotency_key"),
    "key with a space": ("Idempotency-Key", [b"a b"], "invalid_idempotency_key"),
    "key with a tab": ("Idempotency-Key", [b"a\tb"], "invalid_idempotency_key"),
    "key not ASCII": ("Idempotency-Key", ["é".encode()], "invalid_idempotency_key"),
    "key not UTF-8": ("Idempotency-Key", [b"\xff"], "invalid_idempotency_key"),
    "key of a no-break space": ("Idempotency-Key", ["\u00a0".encode()], "invalid_idempotency_key"),
    "key twice": ("Idempotency-Key", [b"a", b"a"], "invalid_idempotency_key"),
    "key twice, once blank": ("Idempotency-Key", [b"", b"a"], "invalid_idempotency_key"),
    "id too long": ("X-Hermes-Session-Id", [b"x" * 257], "invalid_session_id"),
    "id twice": ("X-Hermes-Session-Id", [b"a", b"b"], "invalid_session_id"),
    "id not UTF-8": ("X-Hermes-Session-Id", [b"a\xff"], "invalid_session_id"),
    "id with a tab": ("X-Hermes-Session-Id", [b"a\tb"], "invalid_session_id"),
    "id with C1 controls": ("X-Hermes-Session-Id", ["a\u0085b".encode()], "invalid_session_id"),
    "id a dot": ("X-Hermes-Session-Id", [b"."], "invalid_session_id"),
    "session key too long": ("X-Hermes-Session-Key", [b"x" * 257], "invalid_session_key"),
    "session key twice": ("X-Hermes-Session-Key", [b"a", b"b"], "invalid_session_key"),
    "session key not UTF-8": ("X-Hermes-Session-Key", [b"\xc3"], "invalid_session_key"),
    "unknown policy": ("X-Hermes-Turn-Policy", [b"queue"], "invalid_turn_policy"),
    "policy twice": ("X-Hermes-Turn-Policy", [b"wait", b"reject"], "invalid_turn_policy"),
}


@pytest.mark.parametrize("case", HEADERS)
async def test_a_wrong_header(gateway, case):
    """B3, F8, G3: ids, keys and policies that cannot be are 400, with a code that names the header."""
    name, values, code = HEADERS[case]
    for stream in (False, True):
        data = raw.post(*((name.encode(), value) for value in values), body=body(stream=stream))
        check_envelope(await raw.send(gateway.url, data), 400, code)


@pytest.mark.parametrize("byte", [b"\x00", b"\x01", b"\x0b", b"\x0c", b"\x1f", b"\x7f", b"\r", b"\n"])
@pytest.mark.parametrize("name", [b"Idempotency-Key", b"X-Hermes-Session-Id", b"X-Hermes-Session-Key"])
async def test_control_characters_in_a_header(gateway, name, byte):
    """B3, F8: NUL, line ends and their kind are 400, wherever they are noticed."""
    reply = await raw.send(gateway.url, raw.post((name, b"a" + byte + b"b")))
    assert reply.status == 400
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.code in ("invalid_http", "invalid_idempotency_key", "invalid_session_id", "invalid_session_key")


PATHS = {
    "too long": ("/api/sessions/" + "x" * 257, "invalid_session_id"),
    "control character": ("/api/sessions/a%0Ab", "invalid_session_id"),
    "NUL": ("/api/sessions/%00", "invalid_session_id"),
    "not UTF-8": ("/api/sessions/%FF", "invalid_session_id"),
    "force": ("/api/sessions/s?force=maybe", "invalid_force"),
    "receipts": ("/api/sessions/s?receipts=2", "invalid_receipts"),
}


@pytest.mark.parametrize("case", PATHS)
async def test_a_wrong_address(gateway, case):
    """B3, J10: an id that cannot be, or a switch that says neither yes nor no, is 400 on the session routes too."""
    path, code = PATHS[case]
    data = raw.request(b"DELETE " + path.encode() + b" HTTP/1.1", (b"Host", b"x"), (b"Content-Length", b"0"))
    check_envelope(await raw.send(gateway.url, data), 400, code)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=-1", "offset=-1", "offset=1e3", "limit=²"])
async def test_a_wrong_page(gateway, query):
    """J10: pages are asked for in whole numbers within their bounds."""
    reply = await gateway.request("GET", f"/api/sessions?{query}")
    check_envelope(reply, 400, f"invalid_{query.partition('=')[0]}")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large(gateway, http, chunked):
    """J9: one byte over `max_body` is 413, declared or chunked; a declared one is not even read."""
    content = body()[:-1] + b',"pad":"'
    content += b"x" * (MAX_BODY + 1 - len(content) - 2) + b'"}'
    assert len(content) == MAX_BODY + 1

    async def pieces():
        for start in range(0, len(content), 100_000):
            yield content[start : start + 100_000]

    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    data = pieces() if chunked else io.BytesIO(content)
    async with http.post(f"{gateway.url}/v1/chat/completions", data=data, headers=headers) as response:
        answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (413, "body_too_large")
        assert response.headers["x-should-retry"] == "false"


async def test_a_body_that_says_it_is_too_large_is_not_waited_for(gateway):
    """J9: the refusal comes before the body does."""
    headers = [(b"Host", b"x"), (b"Content-Length", b"%d" % (MAX_BODY + 1))]
    reply = await raw.send(gateway.url, raw.request(b"POST /v1/chat/completions HTTP/1.1", *headers))
    check_envelope(reply, 413, "body_too_large")


BEARERS = {
    "missing": [],
    "empty": [b""],
    "wrong": [b"Bearer wrong"],
    "no scheme": [b"one"],
    "other scheme": [b"Basic one"],
    "only the scheme": [b"Bearer "],
    "longer": [b"Bearer one1"],
    "not ASCII": ["Bearer öne".encode()],
    "not UTF-8": [b"Bearer \xff\xfe"],
    "twice": [b"Bearer one", b"Bearer one"],
}


@pytest.mark.parametrize("case", BEARERS)
async def test_a_wrong_bearer(start, case):
    """J9: a missing, wrong or odd bearer is 401 on every route, before the body is looked at."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one"))
    headers = [(b"Authorization", value) for value in BEARERS[case]]
    host = ((b"Host", b"x"), (b"Content-Length", b"0"))
    requests = [
        raw.post(*headers),
        raw.post(*headers, body=b"no JSON"),
        raw.post(*headers, path=b"/no/such/route"),
        *(
            raw.request(line + b" HTTP/1.1", *host, *headers)
            for line in (b"GET /api/sessions", b"DELETE /api/sessions/s", b"GET /v1/models")
        ),
    ]
    for data in requests:
        reply = await raw.send(gateway.url, data)
        check_envelope(reply, 401, "invalid_api_key")
        assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert (await gateway.request("GET", "/healthz")).status == 200
