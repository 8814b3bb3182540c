"""Chat requests without a session header: the conversation is found from its opening."""

import asyncio

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import assistant, dump, hold, queued, user

SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = user("hello")


def parts(*texts, kind="text"):
    """Texts as content parts."""
    return [{"type": kind, "text": text} for text in texts]


def image(url, **more):
    """A picture as a content part."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


async def test_the_same_opening_is_the_same_session(gateway, upstream):
    """A1, A2: whatever else differs, the same opening and its later turns land in one session, which is named."""
    opened = await gateway.chat([SYSTEM, HELLO])
    assert opened.status == 200
    assert opened.session_id.startswith("ses_i")
    later = [SYSTEM, HELLO, assistant("hello"), user("and now?")]
    again = [
        await gateway.chat([SYSTEM, HELLO]),
        await gateway.chat([SYSTEM, HELLO], model="other", body={"temperature": 1.0, "tools": [], "n": 1}),
        await gateway.chat([SYSTEM, HELLO], stream=True, api_key="whatever"),
        await gateway.chat(later),
        await gateway.chat([*later, assistant("x"), user("more")], stream=True),
    ]
    assert [reply.status for reply in again] == [200] * 5
    assert {reply.session_id for reply in again} == {opened.session_id}
    assert upstream.count == 6
    assert (await gateway.session(opened.session_id)).json()["turns"] == 6


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        ([HELLO], {}),
        ([{"role": "system", "content": "Be long."}, HELLO], {}),
        ([SYSTEM, user("hello!")], {}),
        ([SYSTEM, {"role": "developer", "content": "x"}, HELLO], {}),
        ([SYSTEM, HELLO], {"user": "ann"}),
        ([SYSTEM, HELLO], {"safety_identifier": "ann"}),
    ],
)
async def test_another_opening_is_another_session(gateway, messages, body):
    """A1: system text, first user message and the named end user tell conversations apart."""
    opened, other = await gateway.chat([SYSTEM, HELLO]), await gateway.chat(messages, body=body)
    assert other.status == 200
    assert other.session_id != opened.session_id


async def test_end_users_are_told_apart(gateway):
    """A1: two end users who open alike are two conversations, each found again, under either name of the field."""
    ids = {name: (await gateway.chat([HELLO], body={"user": name})).session_id for name in ("ann", "bob")}
    assert len(set(ids.values())) == 2
    assert (await gateway.chat([HELLO], body={"safety_identifier": "ann"})).session_id == ids["ann"]


async def test_tenants_are_told_apart(start):
    """A1: tenants never share a session, and the API key's own value does not matter."""
    gateway = await start(keys=ApiKeys.load(None, "acme:one,acme:two,beta:three"))
    first, second, third = [(await gateway.chat([HELLO], api_key=key)).session_id for key in ("one", "two", "three")]
    assert first == second != third


@pytest.mark.parametrize(
    ("content", "same"),
    [
        (parts("hello"), True),
        (parts("hel", "lo"), True),
        (parts("hello", kind="input_text"), True),
        ([*parts("hello"), image("https://example.com/a.png")], False),
    ],
)
async def test_text_and_its_parts_are_one_opening(gateway, content, same):
    """A4: a string and the same text as parts are the same opening; a picture beside it is not."""
    opened, other = await gateway.chat([HELLO]), await gateway.chat([user(content)])
    assert other.status == 200
    assert (other.session_id == opened.session_id) == same


async def test_images_count_with_their_address_and_detail(gateway):
    """A4: another picture, or another detail, opens another conversation; the same one is found again."""
    pictures = [image("https://a/1"), image("https://a/2"), image("https://a/1", detail="high"), image("https://a/1")]
    ids = [(await gateway.chat([user([*parts("look"), picture])])).session_id for picture in pictures]
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]


async def test_a_deleted_opening_moves_on_and_never_back(gateway, upstream):
    """A3, A5: n deletions give n+1 distinct ids, later turns stay on the new one, one turn runs per request."""
    later = [HELLO, assistant("hello"), user("more")]
    ids = []
    for _ in range(5):
        opened, followed = await gateway.chat([HELLO]), await gateway.chat(later)
        assert opened.status == followed.status == 200
        assert opened.session_id == followed.session_id
        ids.append(opened.session_id)
        assert (await gateway.delete(opened.session_id)).status == 200
    last = (await gateway.chat(later)).session_id
    assert len({*ids, last}) == 6
    assert upstream.count == 11
    assert [(await gateway.session(old)).status for old in ids] == [404] * 5
    listed = (await gateway.request("GET", "/api/sessions")).json()["data"]
    assert [session["id"] for session in listed] == [last]


async def test_no_record_of_a_retired_session_reappears(gateway, store_server):
    """A5: after a deletion and a new turn nothing in the store names the retired id."""
    opened = await gateway.chat([HELLO])
    await gateway.delete(opened.session_id)
    assert (await gateway.chat([HELLO])).status == 200
    assert opened.session_id not in str(dump(store_server))


async def test_a_pruned_tombstone_does_not_bring_an_id_back(gateway):
    """A3: when the tombstone of a deleted session is gone its id stays unused for ever."""
    ids = []
    for _ in range(3):
        ids.append((await gateway.chat([HELLO])).session_id)
        await gateway.delete(ids[-1])
        assert await gateway.coordinator.prune("default", 0) == 1
        assert [(await gateway.chat([HELLO], session_id=old)).status for old in ids] == [404] * len(ids)
    assert len(set(ids)) == 3


async def test_first_requests_that_race_share_one_session(start):
    """A3: after a deletion 20 simultaneous first requests over two replicas share one new id, ten times over."""
    gateways = [await start(), await start()]
    retired = {(await gateways[0].chat([HELLO])).session_id}
    for _ in range(10):
        (current,) = {(await gateways[1].chat([HELLO])).session_id}
        await gateways[0].delete(current)
        retired.add(current)
        replies = await asyncio.gather(*(gateways[i % 2].chat([HELLO]) for i in range(20)))
        assert [reply.status for reply in replies] == [200] * 20
        (new,) = {reply.session_id for reply in replies}
        assert new not in retired
        retired.add(new)
    assert len(retired) == 11


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [SYSTEM],
        [assistant("hello")],
        [user("")],
        [user(None)],
        [user([])],
        [user(parts(""))],
        [user([{"type": "hologram", "hologram": "x"}])],
        [user([*parts("hello"), {"type": "hologram"}])],
        [{"role": "system", "content": [{"type": "hologram"}]}, HELLO],
        [user([{"text": "no type"}])],
        [user(["hello"])],
        [user(7)],
        [user([image("")])],
    ],
)
async def test_an_opening_that_cannot_be_read_is_refused(gateway, upstream, store_server, messages, stream):
    """A6: no usable user message, or an unknown part in the opening, is 400; nothing is created and nothing runs."""
    reply = await gateway.chat(messages, stream=stream, key="k")
    assert (reply.status, reply.code) == (400, "invalid_messages")
    assert reply.json()["error"]["param"].startswith("messages")
    assert upstream.count == 0
    assert dump(store_server) == {}


async def test_what_openai_documents_is_known_and_later_messages_pass_as_they_are(gateway, upstream):
    """A6: every documented part type opens a conversation, and what follows it goes to the upstream untouched."""
    known = [
        *parts("look"),
        image("https://example.com/a.png", detail="low"),
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]
    later = [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, user([{"type": "hologram"}])]
    reply = await gateway.chat([user(known), *later])
    assert reply.status == 200
    assert upstream.calls[0].json()["messages"] == [user(known), *later]


async def test_turns_of_an_opening_run_side_by_side(gateway, upstream):
    """A7: strangers who opened alike do not wait for each other, also when one of them names the session."""
    opened = await gateway.chat([HELLO])
    asking = [asyncio.create_task(gateway.chat([HELLO], model="gate")) for _ in range(2)]
    asking.append(asyncio.create_task(gateway.chat([HELLO], model="gate", session_id=opened.session_id)))
    await upstream.until(lambda up: up.running == 3)
    upstream.release()
    replies = await asyncio.gather(*asking)
    assert [reply.status for reply in replies] == [200] * 3
    assert {reply.session_id for reply in replies} == {opened.session_id}


async def test_exclusive_openings_take_turns_however_they_are_named(start, upstream):
    """A7: with `implicit_turns=exclusive` they take turns, found by the opening or named by the id."""
    gateway = await start(implicit_turns="exclusive")
    opened = await gateway.chat([HELLO])
    first = await hold(gateway, upstream, [HELLO])
    second = asyncio.create_task(gateway.chat([HELLO], session_id=opened.session_id))
    await queued(gateway, opened.session_id)
    assert upstream.count == 2
    upstream.release()
    assert [(await asked).status for asked in (first, second)] == [200, 200]
    assert upstream.overlap("hello") == 1
