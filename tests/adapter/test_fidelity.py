"""Bytes stay as they are: on the way to the upstream, back, into the store and out of it again."""

import io
import json

import pytest

from gateway_adapter import json_text
from tests.adapter.gateway import session_path
from tests.support.answers import weird_json, weird_stream

ODD_MESSAGE = (
    b'{ "role":"user" ,"content":"\\u0000 \xf0\x9f\x98\x80 \\ud83d\\ude00 \\/ caf\xc3\xa9",'
    b'"big":12345678901234567890, "exact":1.10,"power":1E+2,"empty":[],"none":{},"nested":[[],{}],"nothing":null}'
)
ODD_BODY = b'{"model":"weird",\n  "temperature": 1.0,"messages" : [ ' + ODD_MESSAGE + b' ],"seed":9007199254740993}\n'


async def send(gateway, body=ODD_BODY, **headers):
    """POST these bytes."""
    sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.http.post(f"{gateway.url}/v1/chat/completions", data=body, headers=sent) as response:
        return response.status, await response.read(), response.headers.copy()


@pytest.mark.parametrize("key", [None, "k"])
async def test_an_answer_passes_byte_for_byte(gateway, upstream, key):
    """H7, J4: `[]`, 17-digit integers, NUL, emoji and white space reach the client and the keyed retry as they are."""
    for _ in range(2 if key else 1):
        reply = await gateway.chat("hello", model="weird", key=key)
        assert reply.body == weird_json(1)
        assert reply.headers["Content-Type"] == "application/json"
    assert upstream.count == 1


async def test_odd_answers_survive_the_change_of_form(gateway):
    """F4, J4: asked in the other form, an odd answer says the same."""
    whole = await gateway.chat("hello", model="weird", key="json")
    streamed = await gateway.chat("hello", model="weird", key="json", stream=True)
    assert streamed.text() == whole.text() == "\x00 😀 😀 é / end"
    assert '"bigger":12345678901234567890' in "".join(streamed.events()).replace(" ", "")
    first = await gateway.chat("hello", model="weird", key="sse", stream=True)
    again = await gateway.chat("hello", model="weird", key="sse")
    assert again.text() == first.text() == "a😀\x00z"
    assert b'"big":12345678901234567890' in again.body.replace(b" ", b"")


async def test_a_request_passes_byte_for_byte(gateway, upstream):
    """H7: of a header-less request the upstream gets the client's own bytes."""
    assert (await send(gateway))[0] == 200
    assert upstream.calls[0].body == ODD_BODY


@pytest.mark.parametrize("stream", [False, True])
async def test_the_transcript_is_kept_byte_for_byte(gateway, upstream, stream):
    """B2, J4: messages are stored and sent again as they were said, by either side."""
    body = ODD_BODY.replace(b'"seed"', b'"stream":true,"seed"') if stream else ODD_BODY
    status, answer, _ = await send(gateway, body, X_Hermes_Session_Id="s")
    assert (status, answer) == (200, b"".join(weird_stream(1)) if stream else weird_json(1))
    kept = await gateway.request("GET", session_path("s") + "/messages")
    said = json_text.items(json_text.members(kept.body)["data"])
    assert said[0] == ODD_MESSAGE
    if not stream:
        assert said[1] in weird_json(1)
    assert json.loads(said[1])["content"] == ("a😀\x00z" if stream else "\x00 😀 😀 é / end")
    assert (await send(gateway, body, X_Hermes_Session_Id="s"))[0] == 200
    again = json_text.items(json_text.members(upstream.calls[1].body)["messages"])
    assert again == [*said, ODD_MESSAGE]
    assert b'"temperature":1.0,' in upstream.calls[1].body.replace(b": 1", b":1")


async def test_headers_for_clients_pass_and_others_do_not(gateway, upstream):
    """J8: a request's own authorization and cookies never reach the upstream."""
    headers = {"Cookie": "a=b", "X-Whatever": "secret-of-the-client"}
    assert (await gateway.chat("hello", api_key="secret-of-the-client", headers=headers)).status == 200
    assert "secret-of-the-client" not in str(upstream.calls[0].headers)
    assert "Cookie" not in upstream.calls[0].headers


async def test_the_largest_body_passes(gateway, upstream):
    """H7, J9: a body of exactly `max_body` goes to the upstream whole."""
    body = b'{"model":"ok","messages":[{"role":"user","content":"hello"}],"pad":"'
    body += b"x" * (10_000_000 - len(body) - 2) + b'"}'
    assert len(body) == 10_000_000
    assert (await send(gateway, io.BytesIO(body), Idempotency_Key="k"))[0] == 200
    assert upstream.calls[0].body == body
