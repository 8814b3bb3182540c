"""Chat requests that name their session in `X-Hermes-Session-Id`."""

import asyncio
import unicodedata

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import assistant, dump, session_path, user

UNKNOWN = f"ses_i{'0' * 24}_1_{'0' * 16}"

ODD_IDS = [
    *(
        "{",
        "}",
        "{}",
        "a}b",
        "{x}",
        "a:lease",
        ":",
        "*",
        "[a]",
        "?",
        "a b",
        "a/b",
        "a//b",
        "a%2Fb",
        "%",
        "a?b#c",
        "&=+",
    ),
    *(
        "...",
        "..a",
        "ses_foo",
        "ses_i_1_2",
        UNKNOWN + "0",
        UNKNOWN.upper(),
        "x" * 256,
        "é" * 256,
        "\\",
        '"',
        "a,b",
        "'",
    ),
    *(unicodedata.normalize(form, "Zoë 🙂 ñ") for form in ("NFC", "NFD")),
    *("S1", "S10", "s1", "\u00a0S1", "S1\u3000"),
]


async def test_an_unknown_id_is_created_and_named_again(gateway, upstream):
    """B1: a session is created under the id that the client chose, echoed for JSON and streams, and found by it."""
    replies = [await gateway.chat("hello", session_id="chat-42", stream=stream) for stream in (False, True)]
    assert [(reply.status, reply.session_id) for reply in replies] == [(200, "chat-42")] * 2
    shown = (await gateway.session("chat-42")).json()
    assert (shown["id"], shown["object"], shown["kind"], shown["turns"]) == ("chat-42", "session", "x", 2)
    assert upstream.count == 2


async def test_a_session_of_ours_is_found_by_its_id(gateway):
    """B1: the id of a header-less conversation leads to it, whatever the request opens with."""
    opened = await gateway.chat("hello")
    named = await gateway.chat("something else", session_id=opened.session_id)
    assert named.session_id == opened.session_id
    assert (await gateway.session(opened.session_id)).json()["turns"] == 2


@pytest.mark.parametrize("chosen", [True, False])
async def test_a_retired_id_stays_retired(gateway, upstream, chosen):
    """B1: a deleted id is 404 for ever, before and after pruning, for ids we minted and for ids clients chose."""
    opened = await gateway.chat("hello", session_id="chat-42" if chosen else None)
    assert (await gateway.delete(opened.session_id)).status == 200
    for prune in (False, True, True):
        if prune:
            await gateway.coordinator.prune("default", 0)
        for stream in (False, True):
            refused = await gateway.chat("hello", session_id=opened.session_id, stream=stream, key=f"{prune}{stream}")
            assert (refused.status, refused.code) == (404, "not_found")
            assert refused.headers["x-should-retry"] == "false"
            assert refused.session_id is None
        reads = [await gateway.session(opened.session_id), await gateway.delete(opened.session_id)]
        reads.append(await gateway.request("GET", session_path(opened.session_id) + "/messages"))
        assert [(read.status, read.code) for read in reads] == [(404, "not_found")] * 3
    assert upstream.count == 1
    assert (await gateway.chat("hello")).session_id != opened.session_id


async def test_an_id_of_our_pattern_is_never_created(gateway, upstream, store_server):
    """B1: an id in our full pattern that is not current is 404, and nothing of it gets into the store."""
    refused = await gateway.chat("hello", session_id=UNKNOWN)
    assert (refused.status, refused.code) == (404, "not_found")
    assert upstream.count == 0
    assert dump(store_server) == {}


async def test_a_store_session_keeps_its_history(gateway, upstream):
    """B2: the input is what follows the last assistant message; the stored transcript comes before it."""
    system = {"role": "system", "content": "Be brief."}
    await gateway.chat([system, user("one")], session_id="s")
    await gateway.chat("two", session_id="s", stream=True)
    await gateway.chat([user("forged"), assistant("forged"), user("three"), user("and four")], session_id="s")
    told = [system, user("one"), assistant("one"), user("two"), assistant("two"), user("three"), user("and four")]
    assert (await gateway.session("s")).json()["history"] == "store"
    sent = [call.json()["messages"] for call in upstream.calls]
    assert [len(messages) for messages in sent] == [2, 4, 7]
    assert [(message["role"], message["content"]) for message in sent[2]] == [(m["role"], m["content"]) for m in told]
    kept = (await gateway.request("GET", "/api/sessions/s/messages")).json()["data"]
    assert [(message["role"], message["content"]) for message in kept] == [
        *((message["role"], message["content"]) for message in told),
        ("assistant", "and four"),
    ]


async def test_a_client_session_named_by_its_id_keeps_the_bodys_messages(gateway, upstream):
    """B2: who keeps the history is fixed when a session is created; naming a header-less one changes nothing."""
    messages = [user("one"), assistant("one"), user("two")]
    opened = await gateway.chat(messages)
    await gateway.chat(messages, session_id=opened.session_id)
    assert [call.json()["messages"] for call in upstream.calls] == [messages] * 2
    assert (await gateway.session(opened.session_id)).json()["history"] == "client"
    assert (await gateway.request("GET", session_path(opened.session_id) + "/messages")).json()["data"] == []


async def test_all_transcripts_are_kept_when_asked_for(start, upstream):
    """B2: under `transcripts=all` a header-less conversation has its history in the store too."""
    gateway = await start(transcripts="all")
    opened = await gateway.chat("one")
    await gateway.chat([user("one"), assistant("one"), user("two")])
    assert [message["content"] for message in upstream.calls[1].json()["messages"]] == ["one", "one", "two"]
    kept = (await gateway.request("GET", session_path(opened.session_id) + "/messages")).json()["data"]
    assert [message["content"] for message in kept] == ["one", "one", "two", "two"]


async def test_a_store_session_needs_something_new(gateway, upstream):
    """B2, F6: messages that end with the assistant's bring nothing new: 400, nothing runs, and the key stays free."""
    await gateway.chat("one", session_id="s")
    refused = await gateway.chat([user("one"), assistant("one")], session_id="s", key="k")
    assert (refused.status, refused.code) == (400, "invalid_messages")
    assert upstream.count == 1
    assert (await gateway.chat("two", session_id="s", key="k")).status == 200


async def test_odd_ids_work_on_every_route_and_share_nothing(gateway, upstream):
    """B3: braces, colons, stars, slashes, spaces and non-ASCII are legal, never collide and never act as patterns."""
    assert len(set(ODD_IDS)) == len(ODD_IDS)
    opened = await asyncio.gather(*(gateway.chat(f"hello {each}", session_id=each) for each in ODD_IDS))
    assert [reply.status for reply in opened] == [200] * len(ODD_IDS)
    assert [reply.session_id for reply in opened] == ODD_IDS
    for each in ODD_IDS:
        assert (await gateway.session(each)).json()["id"] == each
        kept = (await gateway.request("GET", session_path(each) + "/messages")).json()
        assert (kept["session_id"], kept["data"][0]) == (each, user(f"hello {each}"))
    for number, each in enumerate(ODD_IDS):
        deleted = await gateway.delete(each)
        assert (deleted.status, deleted.json()) == (200, {"id": each, "object": "session.deleted", "deleted": True})
        left = (await gateway.request("GET", "/api/sessions?limit=100")).json()["data"]
        assert {session["id"] for session in left} == set(ODD_IDS[number + 1 :])


@pytest.mark.parametrize("session_id", [".", "..", "x" * 257, "a\tb", "a\u0085b", "\u0085"])
async def test_impossible_ids_are_refused(gateway, upstream, store_server, session_id):
    """B3: over 256 characters, control characters, `.` and `..` are 400 before any write."""
    for stream in (False, True):
        refused = await gateway.chat("hello", session_id=session_id, stream=stream, key="k")
        assert (refused.status, refused.code) == (400, "invalid_session_id")
    assert upstream.count == 0
    assert dump(store_server) == {}


async def test_another_tenants_session_is_as_unknown(start, upstream):
    """B4: what another tenant owns is 404 with the same body as what nobody owns, and its own id is free."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one,beta:two"))
    ours = (await gateway.chat("hello", api_key="one")).session_id
    await gateway.chat("hello", session_id="chosen", api_key="one")
    for known, unknown in ((ours, UNKNOWN), ("chosen", "never")):
        for method, path in (("GET", ""), ("GET", "/messages"), ("DELETE", ""), ("DELETE", "?force=true")):
            theirs, nobodys = [
                await gateway.request(method, session_path(each) + path, api_key="two") for each in (known, unknown)
            ]
            assert (theirs.status, theirs.code) == (404, "not_found")
            assert theirs.body == nobodys.body
    theirs, nobodys = [await gateway.chat("hi", session_id=each, api_key="two", key="k") for each in (ours, UNKNOWN)]
    assert (theirs.status, theirs.body) == (404, nobodys.body)
    assert upstream.count == 2
    assert (await gateway.chat("hi", session_id="chosen", api_key="two")).status == 200
    assert (await gateway.session("chosen", api_key="one")).json()["turns"] == 1
    assert (await gateway.request("GET", "/api/sessions", api_key="two")).json()["data"][0]["turns"] == 1
