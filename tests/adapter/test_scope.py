"""What leaves for the upstream beside the client's own request: the affinity scope, and the fence."""

import json
import re

import pytest

from gateway_adapter.affinity import PRESETS, ScopeCarrier
from tests.adapter import raw
from tests.adapter.gateway import assistant, session_path, user

SCOPE = re.compile(r"gw[ks]_[0-9a-f]{24}")
HEADERS = ("x-grok-conv-id", "x-session-affinity", "x-litellm-session-id")
MEMBERS = ("prompt_cache_key", "session_id")
BODY = b'{"model":"ok",  "messages":[{"role":"user","content":"h\\u00e9llo"}],"seed":12345678901234567890,"x":[]}'
ADDRESSES = {
    "declared": {"X-Hermes-Session-Key": "chat-42"},
    "explicit": {"X-Hermes-Session-Id": "mine"},
    "header-less": {},
}


def carried(call):
    """What an upstream call carries, by place and name."""
    body = call.json()
    found = {f"body:{name}": body[name] for name in MEMBERS if name in body}
    return found | {f"header:{name}": call.headers[name] for name in HEADERS if name in call.headers}


def scoped(names):
    """The setting."""
    return ScopeCarrier.parse(names)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize(("address", "prefix"), [("declared", "gwk_"), ("explicit", "gws_")])
async def test_the_upstream_is_told_the_scope(gateway, upstream, stream, address, prefix):
    """D4, D5: `prompt_cache_key` by default, for declared and explicit sessions; the client is told the same."""
    for _ in range(2):
        reply = await gateway.chat("hello", headers=ADDRESSES[address], stream=stream)
        assert carried(upstream.calls[-1]) == {"body:prompt_cache_key": reply.headers["X-Hermes-Scope"]}
        assert SCOPE.fullmatch(reply.headers["X-Hermes-Scope"])
        assert reply.headers["X-Hermes-Scope"].startswith(prefix)
    assert len({call.json()["prompt_cache_key"] for call in upstream.calls}) == 1


async def test_header_less_conversations_carry_none_unless_asked(start, upstream):
    """D4: a name for each opening would split the cache of the system prompt that they share; the client is told it."""
    plain, asked = await start(), await start(scope_implicit=True)
    first = await plain.chat("hello")
    assert carried(upstream.calls[-1]) == {}
    second = await asked.chat("hello")
    assert carried(upstream.calls[-1]) == {"body:prompt_cache_key": second.headers["X-Hermes-Scope"]}
    assert first.headers["X-Hermes-Scope"] == second.headers["X-Hermes-Scope"]
    named = await plain.chat("hello", session_id=first.session_id)
    assert carried(upstream.calls[-1]) == {"body:prompt_cache_key": named.headers["X-Hermes-Scope"]}


@pytest.mark.parametrize("preset", PRESETS)
async def test_every_preset_is_what_its_provider_reads(start, upstream, preset):
    """D4: under its one name, and under no other; `off` is none."""
    gateway = await start(scope_as=scoped(preset))
    reply = await gateway.chat("hello", session_key="chat-42")
    scope = reply.headers["X-Hermes-Scope"]
    assert carried(upstream.calls[-1]) == ({PRESETS[preset]: scope} if PRESETS[preset] else {})


async def test_names_can_be_put_together(start, upstream):
    """D4: presets and names of one's own, in body and headers at once."""
    gateway = await start(scope_as=scoped("openai, xai,header:X-My-Conversation,body:cache_id"))
    scope = (await gateway.chat("hello", session_key="chat-42")).headers["X-Hermes-Scope"]
    call = upstream.calls[-1]
    assert carried(call) == {"body:prompt_cache_key": scope, "header:x-grok-conv-id": scope}
    assert (call.headers["X-My-Conversation"], call.json()["cache_id"]) == (scope, scope)


@pytest.mark.parametrize(
    "text",
    ["body:messages", "body:model", "body:stream", "header:Authorization", "header:host", "body:a b", "x", "body:"],
)
def test_names_that_are_not_free_are_refused(text):
    """D4: what would change what is asked, or who asks, carries nothing."""
    with pytest.raises(ValueError, match=r"is none of|openai"):
        scoped(text)


@pytest.mark.parametrize("own", ['"mine"', "null", "0", '"gwk_000000000000000000000000"'])
@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_member_that_the_client_set_is_left_alone(start, upstream, address, own):
    """D4: whatever its value; and then not a byte of the body is changed."""
    gateway = await start(scope_implicit=True)
    body = BODY[:-1] + b',"prompt_cache_key":%b}' % own.encode()
    headers = [(name.encode(), value.encode()) for name, value in ADDRESSES[address].items()]
    assert (await raw.send(gateway.url, raw.post(*headers, body=body))).status == 200
    sent = upstream.calls[-1].body
    assert sent == body if address != "explicit" else json.loads(sent) == json.loads(body)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_header_that_the_client_set_is_left_alone(start, upstream, address):
    """D4: it goes to the upstream as it came, also where no scope would be sent; none of its others does."""
    gateway = await start(scope_as=scoped("xai,fireworks"))
    own = {"X-Grok-Conv-Id": "mine", "X-Other": "kept", "Cookie": "a=b"}
    reply = await gateway.chat("hello", headers=ADDRESSES[address] | own)
    scope = {} if address == "header-less" else {"header:x-session-affinity": reply.headers["X-Hermes-Scope"]}
    call = upstream.calls[-1]
    assert carried(call) == {"header:x-grok-conv-id": "mine"} | scope
    assert not {"x-other", "cookie"} & {name.lower() for name in call.headers}


@pytest.mark.parametrize("value", [b"\xff\xfe", "Zoë".encode(), b"a\tb", b"x" * 5_000])
async def test_an_odd_header_of_the_clients_fails_nobody(start, upstream, value):
    """D4, J8: whatever it is, the turn runs; what of it is text is passed on as it came."""
    gateway = await start(scope_as=scoped("xai"))
    reply = await raw.send(gateway.url, raw.post((b"X-Hermes-Session-Key", b"chat-42"), (b"X-Grok-Conv-Id", value)))
    assert reply.status == 200
    assert upstream.calls[-1].headers["x-grok-conv-id"] == value.decode("utf-8", "ignore")


@pytest.mark.parametrize("names", ["openai", "off", "xai"])
@pytest.mark.parametrize("address", ["declared", "header-less"])
async def test_the_body_is_otherwise_unchanged(start, upstream, address, names):
    """H7, J4, D4: where nothing is added the very bytes go out, else every member in its own bytes."""
    gateway = await start(scope_as=scoped(names))
    headers = [(name.encode(), value.encode()) for name, value in ADDRESSES[address].items()]
    await raw.send(gateway.url, raw.post(*headers, body=BODY))
    sent = upstream.calls[-1].body
    if names != "openai" or address == "header-less":
        assert sent == BODY
    else:
        scope = json.loads(sent)["prompt_cache_key"]
        assert sorted(sent[1:-1].split(b",")) == sorted(
            [*BODY.replace(b'"ok",  ', b'"ok",')[1:-1].split(b","), b'"prompt_cache_key":"%b"' % scope.encode()]
        )


async def test_a_stored_transcript_carries_it_too(gateway, upstream):
    """D4, B2: where the gateway puts the history in front, the scope is the same in every turn."""
    first = await gateway.chat("one", session_id="mine")
    await gateway.chat([user("one"), assistant("one"), user("two")], session_id="mine", body={"seed": 1})
    assert [call.json()["prompt_cache_key"] for call in upstream.calls] == [first.headers["X-Hermes-Scope"]] * 2
    assert [message["content"] for message in upstream.calls[1].json()["messages"]] == ["one", "one", "two"]
    assert upstream.calls[1].json()["seed"] == 1


async def test_the_scope_follows_the_generation(start, upstream):
    """D2, B61: five turns over three replicas send one scope, after a reset another, a fork its own."""
    gateways = [await start() for _ in range(3)]
    said = [await gateways[number % 3].chat(f"turn {number}", session_key="chat-42") for number in range(5)]
    current = session_path(said[0].session_id)
    assert len({call.json()["prompt_cache_key"] for call in upstream.calls}) == 1
    forked = (await gateways[1].request("POST", current + "/fork")).session_id
    await gateways[2].chat("fork", session_id=forked)
    await gateways[0].request("POST", current + "/reset")
    for number in range(3):
        await gateways[number].chat("again", session_key="chat-42")
    sent = [call.json()["prompt_cache_key"] for call in upstream.calls]
    assert [len(set(part)) for part in (sent[:5], sent[5:6], sent[6:])] == [1, 1, 1]
    assert len(set(sent)) == 3


async def test_nothing_readable_leaves(start, upstream):
    """D1, B51: neither tenant, source, key nor session id is in what the upstream is sent."""
    gateway = await start(source="studio-source", scope_as=scoped("openai,xai,openrouter"), fence_header="X-Fence")
    reply = await gateway.chat("hello", session_key="a-declared-key")
    sent = (upstream.calls[-1].body + str(dict(upstream.calls[-1].headers)).encode()).lower()
    for part in ("default", "studio-source", "a-declared-key", reply.session_id, reply.session_id[5:29], "x-hermes"):
        assert part.lower().encode() not in sent


async def test_the_fence_goes_along_when_asked(start, upstream):
    """G12: under the header that is named, for every kind of session, and growing with each turn of one."""
    plain, fenced = await start(), await start(fence_header="X-Fence", scope_as=scoped("off"))
    await plain.chat("hello", session_key="chat-42")
    assert "X-Fence" not in upstream.calls[-1].headers
    for headers in ADDRESSES.values():
        for _ in range(2):
            await fenced.chat("hello", headers=headers)
        before, after = (int(call.headers["X-Fence"]) for call in upstream.calls[-2:])
        assert after > before > 10**12


async def test_a_client_cannot_set_the_fence(start, upstream):
    """G12: what others refuse old turns by is the gateway's to say."""
    gateway = await start(fence_header="X-Grok-Conv-Id", scope_as=scoped("xai"))
    await gateway.chat("hello", session_key="chat-42", headers={"X-Grok-Conv-Id": "99999999999999"})
    fence = upstream.calls[-1].headers.getall("X-Grok-Conv-Id")
    assert len(fence) == 1
    assert fence != ["99999999999999"]
