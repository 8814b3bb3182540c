"""What a chat body and the headers of a turn may say."""

import asyncio
import json
import sys

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway_adapter.invalid import InvalidRequest
from gateway_adapter.requests import (
    DEPTH_LIMIT,
    idempotency_key,
    new_input,
    parse_chat,
    session_id,
    session_key,
    single_header,
    split_messages,
    turn_policy,
    with_messages,
)


def headers(*values, name="Idempotency-Key"):
    """The headers of a request that sends one of them this often."""
    return CIMultiDictProxy(CIMultiDict([(name, value) for value in values]))


def nested(levels):
    """A chat body of this depth."""
    return b'{"model":"m","x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_a_chat_body_is_read():
    """H1, J4: form and model are read, and the bytes stay as they came."""
    raw = (
        b' { "model" : "m", "stream": true, "stream_options": {"include_usage": true}, "n": 12345678901234567890123 } '
    )
    chat = parse_chat(raw)
    assert (chat.raw, chat.model, chat.stream, chat.include_usage) == (raw, "m", True, True)
    assert chat.fields["n"] == 12345678901234567890123


@pytest.mark.parametrize(
    "raw",
    [b'{"model":"m"}', b'{"model":"m","stream":null,"stream_options":null}', b'{"model":"m","stream_options":{}}'],
)
def test_the_form_is_json_unless_asked_otherwise(raw):
    """H1: without `stream`, or with null, the answer is JSON."""
    chat = parse_chat(raw)
    assert (chat.stream, chat.include_usage) == (False, False)


REFUSED = {
    "empty": (b"", "invalid_json", None),
    "white space": (b"  ", "invalid_json", None),
    "no JSON": (b"model=m", "invalid_json", None),
    "trailing": (b'{"model":"m"} x', "invalid_json", None),
    "two": (b'{"model":"m"}{}', "invalid_json", None),
    "single quotes": (b"{'model':'m'}", "invalid_json", None),
    "NaN": (b'{"model":"m","x":NaN}', "invalid_json", None),
    "Infinity": (b'{"model":"m","x":[-Infinity]}', "invalid_json", None),
    "no UTF-8": (b'{"model":"\xff"}', "invalid_json", None),
    "UTF-16": ('{"model":"m"}'.encode("utf-16"), "invalid_json", None),
    "byte order mark": (b'\xef\xbb\xbf{"model":"m"}', "invalid_json", None),
    "raw control character": (b'{"model":"a\nb"}', "invalid_json", None),
    "list": (b'[{"model":"m"}]', "invalid_json", None),
    "null": (b"null", "invalid_json", None),
    "string": (b'"model"', "invalid_json", None),
    "endless integer": (b'{"model":"m","x":' + b"9" * 100_000 + b"}", "invalid_json", None),
    "one level too deep": (nested(DEPTH_LIMIT + 1), "invalid_json", None),
    "far too deep": (nested(100_000), "invalid_json", None),
    "open brackets": (b"[" * 100_000, "invalid_json", None),
    "open braces": (b'{"a":' * 100_000, "invalid_json", None),
    "no model": (b"{}", "invalid_model", "model"),
    "model null": (b'{"model":null}', "invalid_model", "model"),
    "model empty": (b'{"model":""}', "invalid_model", "model"),
    "model a number": (b'{"model":4}', "invalid_model", "model"),
    "stream a number": (b'{"model":"m","stream":1}', "invalid_stream", "stream"),
    "stream a string": (b'{"model":"m","stream":"true"}', "invalid_stream", "stream"),
    "options a list": (b'{"model":"m","stream_options":[]}', "invalid_stream_options", "stream_options"),
    "usage a string": (
        b'{"model":"m","stream_options":{"include_usage":"yes"}}',
        "invalid_stream_options",
        "stream_options.include_usage",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_body_is_refused(case):
    """J8, J10: what cannot be read, or asks for the impossible, is 400 and names the place, however deep or long."""
    raw, code, param = REFUSED[case]
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(raw)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


def test_the_depth_limit_is_the_same_everywhere_on_the_stack():
    """J8: a body of the greatest depth is read wherever the reader is called from."""

    def from_below(frames):
        return from_below(frames - 1) if frames else parse_chat(nested(DEPTH_LIMIT))

    assert from_below(sys.getrecursionlimit() // 2).model == "m"


def canonical(raw):
    """What the fingerprint of a request is made of."""
    return parse_chat(raw).canonical


def test_form_order_and_white_space_do_not_make_another_request():
    """F2: key order, white space, `stream`, `stream_options` and a character's spelling leave the request the same."""
    one = canonical('{"model":"m","x":{"b":1,"a":"é"}}'.encode())
    other = b'{ "stream":true, "x": { "a":"\\u00e9","b": 1},\n"stream_options":{"include_usage":true},"model":"m" }'
    assert canonical(other) == one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"9007199254740993", b"9007199254740992"),
        (b"1" + b"0" * 400, b"1" + b"0" * 399 + b"1"),
        (b'{"stream":true}', b'{"stream":false}'),
        (b"[1,2]", b"[2,1]"),
        (b'"1"', b"1"),
        (b"null", b"false"),
        (b'"\\u0000"', b'""'),
        (b'"\\ud800"', b'"\\ud801"'),
    ],
)
def test_another_value_is_another_request(one, other):
    """F2, J4: any other value, to the last digit and at any depth, makes another request."""
    assert canonical(b'{"model":"m","x":' + one + b"}") != canonical(b'{"model":"m","x":' + other + b"}")


MESSAGES = [b'{"role": "system",  "content":"\\ud83d\\ude42"}', b'{"role":"user","n": 12345678901234567890123}']


def test_messages_are_split_into_their_bytes():
    """J4: each message is kept as the client wrote it."""
    raw = b'{"model":"m", "messages" : [ ' + b" , ".join(MESSAGES) + b" ]}"
    assert split_messages(raw) == (MESSAGES, ["system", "user"])


def test_half_an_emoji_passes_through():
    """A6: a message with a lone surrogate goes on as it is, however it is handled on the way."""
    message = b'{"role":"user","content":"\\ud83d"}'
    messages, roles = split_messages(b'{"messages":[' + message + b"]}")
    assert (messages, roles) == ([message], ["user"])
    assert with_messages(b'{"a":"\\ud800","\\ud801":1}', messages) == (
        b'{"a":"\\ud800","\\ud801":1,"messages":[' + message + b"]}"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"messages":null}',
        b'{"messages":[]}',
        b'{"messages":{}}',
        b'{"messages":[1]}',
        b'{"messages":[{}]}',
        b'{"messages":[{"role":1}]}',
        b'{"messages":[{"role":"user"},{"role":null}]}',
    ],
)
def test_messages_without_roles_are_refused(raw):
    """A6: a body whose messages cannot be told apart is 400."""
    with pytest.raises(InvalidRequest) as refused:
        split_messages(raw)
    assert (refused.value.code, refused.value.param) == ("invalid_messages", "messages")


@pytest.mark.parametrize(
    ("roles", "new"),
    [
        ("u", "u"),
        ("su", "su"),
        ("sua", ""),
        ("suau", "u"),
        ("uauatu", "tu"),
        ("uaaa", ""),
        ("", ""),
    ],
)
def test_the_new_input_is_what_follows_the_last_assistant_message(roles, new):
    """B2: in a session that keeps its history, only what comes after the last assistant message is new."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    raw = [b"%d" % index for index in range(len(roles))]
    assert new_input(raw, [names[role] for role in roles]) == raw[len(roles) - len(new) :]


def test_only_the_messages_of_a_body_are_replaced():
    """H7, J4: with other messages in it, every other byte of the body is the client's."""
    raw = b'{ "temperature": 1.0, "messages": [1], "n":12345678901234567890123, "x":{ "a" : "\\u0000" } }'
    assert with_messages(raw, [b'{"b":  2}', b"3"], {"n": b"1", "y": b"[ 4 ]"}) == (
        b'{"temperature":1.0,"messages":[{"b":  2},3],"n":12345678901234567890123,"x":{ "a" : "\\u0000" },"y":[ 4 ]}'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(body=st.dictionaries(st.text(), JSON, max_size=4), messages=st.lists(JSON, max_size=3))
def test_any_body_takes_other_messages(body, messages):
    """B2, J4: whatever else a body holds is still there when its messages were replaced."""
    raw = with_messages(json.dumps(body).encode(), [json.dumps(message).encode() for message in messages])
    assert json.loads(raw) == body | {"messages": messages}


@pytest.mark.parametrize("key", ["a", "!" * 255, '"quoted"', "~", "a:b{c}*"])
def test_an_idempotency_key_is_taken_as_it_is(key):
    """F8: 1 to 255 visible ASCII characters are a key, with no character changed."""
    assert idempotency_key(headers(key)) == key


@pytest.mark.parametrize("values", [[], [""], ["   "]])
def test_a_blank_idempotency_key_is_absent(values):
    """F8: no key and a blank one are the same."""
    assert idempotency_key(headers(*values)) is None


@pytest.mark.parametrize(
    "values", [["a b"], ["x" * 256], ["a\x7f"], ["a\x00"], ["é"], ["\udcff"], ["a", "a"], ["", "a"]]
)
def test_an_odd_idempotency_key_is_refused(values):
    """F8: anything else, and a repeated header, is 400 `invalid_idempotency_key`."""
    with pytest.raises(InvalidRequest) as refused:
        idempotency_key(headers(*values))
    assert (refused.value.code, refused.value.param) == ("invalid_idempotency_key", "Idempotency-Key")


def test_a_header_may_be_sent_once():
    """B3, C2: a repeated header names no session; names are compared without case, blank is absent."""
    assert single_header(headers(" a ", name="x-hermes-session-id"), "X-Hermes-Session-Id") == "a"
    assert single_header(headers(" ", name="X-Hermes-Session-Id"), "X-Hermes-Session-Id") is None
    assert single_header(headers(), "X-Hermes-Session-Id") is None
    with pytest.raises(InvalidRequest) as refused:
        single_header(headers("a", "b", name="X-A"), "X-A", "invalid_session_id")
    assert refused.value.code == "invalid_session_id"


@pytest.mark.parametrize("value", ["a", "{}", ":", "*", "a b", "é🙂", "x" * 256, "🙂" * 256, "...", "a/b", "%2e"])
def test_an_identifier_may_hold_any_printable_text(value):
    """B3: braces, colons, stars, spaces and non-ASCII are legal in an id and in a key."""
    assert session_id(value) == session_key(value) == value


@pytest.mark.parametrize(
    "value",
    ["", ".", "..", "x" * 257, "a\nb", "\x00", "a\x7f", "\x85", "\ud800", b"\xff".decode("utf-8", "surrogateescape")],
)
def test_an_impossible_identifier_is_refused(value):
    """B3: more than 256 characters, control characters, broken UTF-8, `.` and `..` are 400."""
    for check, code in ((session_id, "invalid_session_id"), (session_key, "invalid_session_key")):
        with pytest.raises(InvalidRequest) as refused:
            check(value)
        assert refused.value.code == code


async def test_a_header_that_is_not_utf8_is_refused():
    """B3: a header byte that is no UTF-8 reaches the check and is 400, not a crash."""
    seen = []

    async def answer(request):
        value = single_header(request.headers, "X-Hermes-Session-Id")
        try:
            seen.append(session_id(value or ""))
        except InvalidRequest as refused:
            seen.append(refused.code)
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server:
        for value in (b"\xff\xfe", "é".encode()):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(
                b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Hermes-Session-Id: " + value + b"\r\n\r\n"
            )
            await reader.read()
            writer.close()
            await writer.wait_closed()
    assert seen == ["invalid_session_id", "é"]


@pytest.mark.parametrize("value", ["wait", "reject", "interrupt"])
def test_the_turn_policies(value):
    """G3: the three policies can be asked for by a request."""
    assert turn_policy(value) == value


@pytest.mark.parametrize("value", ["", "WAIT", "queue", "wait,reject"])
def test_another_turn_policy_is_refused(value):
    """G3: anything else is 400."""
    with pytest.raises(InvalidRequest) as refused:
        turn_policy(value)
    assert refused.value.code == "invalid_turn_policy"
