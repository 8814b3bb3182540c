"""`POST /api/sessions`, `/api/sessions/{id}/reset` and `/api/sessions/{id}/fork`."""

import asyncio

import pytest

from gateway_adapter.auth import ApiKeys
from tests.adapter.gateway import dump, hold, session_path, user
from tests.support.proxy import DropReplyProxy

UNKNOWN = f"ses_d{'0' * 24}_1_{'0' * 16}"
REASONS = ("session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired")


async def reset(gateway, session_id, body=None, **options):
    """A reset; `body` is sent when given."""
    return await gateway.request("POST", session_path(session_id) + "/reset", json=body, **options)


async def fork(gateway, session_id, **options):
    """A fork."""
    return await gateway.request("POST", session_path(session_id) + "/fork", **options)


async def create(gateway, body=None, **options):
    """A session without a turn."""
    return await gateway.request("POST", "/api/sessions", json=body, **options)


async def texts(gateway, session_id):
    """What the stored transcript says."""
    kept = (await gateway.request("GET", session_path(session_id) + "/messages")).json()["data"]
    return [message["content"] for message in kept]


@pytest.mark.parametrize("reason", [None, *REASONS])
async def test_a_reset_opens_the_next_generation(start, reason):
    """C6, C7: by each of the six reasons; its answer names the id that the next turn gets, on any replica."""
    here, there = await start(), await start()
    first = await here.chat("hello", session_key="chat-42")
    done = await reset(there, first.session_id, {"reason": reason} if reason else None)
    assert done.status == 200
    body = done.json()
    assert {name: body[name] for name in ("id", "object", "reason", "generation")} == {
        "id": first.session_id,
        "object": "session.reset",
        "reason": reason or "session_reset",
        "generation": 2,
    }
    assert (await here.session(first.session_id)).status == 404
    second = await here.chat("hello", session_key="chat-42")
    assert second.session_id == body["session_id"]
    assert second.headers["X-Hermes-Scope"] != first.headers["X-Hermes-Scope"]


@pytest.mark.parametrize("kind", ["implicit", "minted", "announced"])
async def test_other_sessions_of_ours_can_be_reset(gateway, kind):
    """C7, A2: one found by its opening, one that was minted, and one that a reset announced and nobody used yet."""
    if kind == "minted":
        session_id = (await create(gateway)).json()["id"]
    else:
        session_id = (await gateway.chat("hello", session_key="k" if kind == "announced" else None)).session_id
    if kind == "announced":
        session_id = (await reset(gateway, session_id)).json()["session_id"]
    done = await reset(gateway, session_id)
    assert (done.status, done.json()["generation"]) == (200, 3 if kind == "announced" else 2)
    assert (await gateway.chat("hello", session_id=session_id)).status == 404
    if kind == "implicit":
        assert (await gateway.chat("hello")).session_id == done.json()["session_id"]
    else:
        named = await gateway.chat("hello", session_id=done.json()["session_id"])
        assert (named.status, named.session_id) == (200, done.json()["session_id"])


async def test_one_reset_sent_many_times_is_one(start, upstream):
    """C7, B62: five at once over two replicas, one during a new turn, one after another reset: one answer, one bump."""
    gateways = [await start(), await start()]
    first = await gateways[0].chat("hello", session_key="chat-42")
    answers = await asyncio.gather(*(reset(gateways[i % 2], first.session_id, key="k") for i in range(5)))
    assert {(answer.status, answer.body) for answer in answers} == {(200, answers[0].body)}
    running = await hold(gateways[0], upstream, "hello", session_key="chat-42")
    answers.append(await reset(gateways[1], first.session_id, key="k"))
    upstream.release()
    newer = await running
    assert (newer.status, newer.session_id) == (200, answers[0].json()["session_id"])
    assert (await reset(gateways[0], newer.session_id, key="k2")).json()["generation"] == 3
    await gateways[0].coordinator.prune("default", 0)
    answers.append(await reset(gateways[1], first.session_id, key="k"))
    assert {answer.body for answer in answers} == {answers[0].body}
    last = await gateways[0].chat("hello", session_key="chat-42")
    assert (await gateways[0].session(last.session_id)).json()["generation"] == 3


async def test_a_reset_whose_answer_was_lost_can_be_sent_again(start, store_server):
    """C7, J2: with a key it is answered as the first time; without one the id is not current any more: 404, no bump."""
    async with DropReplyProxy(store_server.port) as proxy:
        gateway = await start(store=proxy.url)
        first = await gateway.chat("hello", session_key="chat-42")
        proxy.drop_next_reply(b"session_reset", times=99)
        lost = await reset(gateway, first.session_id, key="k")
        proxy._armed.clear()  # from here on none is lost any more
        assert (lost.status, lost.code) == (503, "storage_unavailable")
        again = await reset(gateway, first.session_id, key="k")
        assert (again.status, again.json()["generation"]) == (200, 2)
    other = await start()
    assert (await reset(other, first.session_id)).status == 404
    assert (await other.chat("hello", session_key="chat-42")).session_id == again.json()["session_id"]


async def test_a_key_names_one_reset(gateway):
    """F2: for another session, reason or condition, or for a chat, it is 409; and a chat's key is none for a reset."""
    first = await gateway.chat("hello", session_key="a")
    other = await gateway.chat("hello", session_key="b")
    done = await reset(gateway, first.session_id, key="k")
    conflicts = [
        await reset(gateway, other.session_id, key="k"),
        await reset(gateway, done.json()["session_id"], key="k"),
        await reset(gateway, first.session_id, {"reason": "idle"}, key="k"),
        await reset(gateway, first.session_id, {"expected": 1}, key="k"),
        await gateway.chat("hello", session_key="a", key="k"),
        await gateway.chat("hello", session_key="a", key="k", stream=True),
    ]
    await gateway.chat("hello", session_key="a", key="k2")
    conflicts.append(await reset(gateway, other.session_id, key="k2"))
    assert [(reply.status, reply.code) for reply in conflicts] == [(409, "admission_conflict")] * 7
    assert {reply.headers["x-should-retry"] for reply in conflicts} == {"false"}
    assert (await gateway.session(other.session_id)).status == 200


async def test_a_reset_can_say_what_it_expects(gateway, upstream):
    """C7: a session id or a generation; the wrong one is 409 `stale_generation`, and the turn that runs goes on."""
    running = await hold(gateway, upstream, "hello", session_key="chat-42")
    [current] = (await gateway.request("GET", "/api/sessions")).json()["data"]
    for wrong in (2, 0, -1, "2", UNKNOWN, "x", 10**30):
        stale = await reset(gateway, current["id"], {"expected": wrong})
        assert (stale.status, stale.code, stale.headers["x-should-retry"]) == (409, "stale_generation", "false")
    upstream.release()
    assert (await running).status == 200
    done = await reset(gateway, current["id"], {"expected": current["id"]})
    assert (await reset(gateway, done.json()["session_id"], {"expected": 2})).json()["generation"] == 3


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"reason": "deleted"}, "invalid_reason"),
        ({"reason": "compression"}, "invalid_reason"),
        ({"reason": ""}, "invalid_reason"),
        ({"reason": 1}, "invalid_reason"),
        ({"reason": "\ud800"}, "invalid_reason"),
        ({"expected": ""}, "invalid_expected"),
        ({"expected": True}, "invalid_expected"),
        ({"expected": 1.5}, "invalid_expected"),
        ({"expected": [1]}, "invalid_expected"),
        ({"expected": "\ud800"}, "invalid_expected"),
        ([], "invalid_json"),
        ("x", "invalid_json"),
    ],
)
async def test_a_wrong_reset_is_refused(gateway, store_server, body, code):
    """C7, B33: 400 before any write, and without holding up what others ask at the same moment."""
    session_id = (await gateway.chat("hello", session_key="chat-42")).session_id
    before = dump(store_server)
    refused, *others = await asyncio.gather(
        reset(gateway, session_id, body), *(gateway.session(session_id) for _ in range(5))
    )
    assert (refused.status, refused.code, refused.headers["x-should-retry"]) == (400, code, "false")
    assert {other.status for other in others} == {200}
    assert dump(store_server) == before


async def test_what_cannot_be_reset(start, store_server):
    """C7, B1, B4: an id that a client chose is 400; an unknown, a retired and another tenant's are 404."""
    gateway = await start(keys=ApiKeys.load(None, "acme:a,beta:b"))
    await gateway.chat("hello", session_id="mine", api_key="a")
    chosen = await reset(gateway, "mine", api_key="a")
    assert (chosen.status, chosen.code) == (400, "invalid_session_id")
    first = await gateway.chat("hello", session_key="k", api_key="a")
    refusals = [await reset(gateway, first.session_id, api_key="b"), await reset(gateway, UNKNOWN, api_key="a")]
    assert (await reset(gateway, first.session_id, api_key="a")).status == 200
    refusals.append(await reset(gateway, first.session_id, api_key="a"))
    assert {(reply.status, reply.code, reply.body) for reply in refusals} == {(404, "not_found", refusals[0].body)}
    assert not any(b"{beta}" in key for key in dump(store_server))


async def test_nothing_of_the_old_generation_is_left(gateway, store_server):
    """C7, E4: transcript and events go with the reset, a keyed client's receipt stays."""
    session_id = (await create(gateway)).json()["id"]
    kept = await gateway.chat("a secret", session_id=session_id, key="k", stream=True)
    await gateway.chat("a secret", session_id=session_id)
    assert (await reset(gateway, session_id)).status == 200
    left = dump(store_server)
    assert "stream" not in {entry.kind for entry in left.values()}
    assert not any(b":messages:" in key or b":leftovers:" in key for key in left)
    again = await gateway.chat("a secret", session_id=session_id, key="k")
    assert (again.text(), again.session_id, again.replayed) == (kept.text(), session_id, True)


async def test_a_session_is_created(start):
    """B1, B2: under the id of body or header, or as a new one; its history is the store's, and it is found again."""
    gateway = await start()
    by_body = await create(gateway, {"id": "a"})
    by_header = await create(gateway, session_id="b")
    by_both = await create(gateway, {"id": "c"}, session_id="c")
    minted = [await create(gateway), await create(gateway, {})]
    for reply in (by_body, by_header, by_both, *minted):
        assert reply.status == 201
        shown = reply.json()
        assert (shown["object"], shown["history"], shown["turns"], shown["generation"]) == ("session", "store", 0, 1)
        assert reply.session_id == shown["id"]
        assert reply.headers["X-Hermes-Scope"] == shown["scope"]
        assert (await gateway.session(shown["id"])).json() == shown
        assert (await create(gateway, {"id": shown["id"]})).status == 200
        said = await gateway.chat("one", session_id=shown["id"])
        assert (said.session_id, said.headers["X-Hermes-Scope"]) == (shown["id"], shown["scope"])
        assert await texts(gateway, shown["id"]) == ["one", "one"]
    assert [by_body.session_id, by_header.session_id, by_both.session_id] == ["a", "b", "c"]
    assert len({reply.session_id for reply in minted}) == 2


async def test_a_declared_session_is_created_once(start):
    """C4: ten at once over two replicas: one is new, all name the same, and its first turn by the key is in it."""
    gateways = [await start(), await start()]
    replies = await asyncio.gather(*(create(gateways[i % 2], session_key="chat-42") for i in range(10)))
    assert sorted(reply.status for reply in replies) == [200] * 9 + [201]
    assert len({reply.session_id for reply in replies}) == 1
    assert {reply.headers["X-Hermes-Session-Key"] for reply in replies} == {"chat-42"}
    said = await gateways[0].chat([user("one")], session_key="chat-42")
    assert said.session_id == replies[0].session_id
    assert (await gateways[1].session(said.session_id)).json()["history"] == "client"


async def test_an_id_goes_before_a_key(gateway):
    """C2, C3: both is no conflict; the key is neither echoed nor bound. Two ids that differ are one."""
    made = await create(gateway, session_id="mine", session_key="chat-42")
    assert (made.status, made.session_id, "X-Hermes-Session-Key" in made.headers) == (201, "mine", False)
    assert (await gateway.chat("hello", session_key="chat-42")).session_id != "mine"
    refused = await create(gateway, {"id": "a"}, session_id="b")
    assert (refused.status, refused.code) == (400, "conflicting_session")


async def test_a_retired_id_is_not_created(gateway):
    """B1: deleted, before and after pruning, ended by a reset, and of our pattern without being current: 404."""
    declared = await gateway.chat("hello", session_key="chat-42")
    await create(gateway, {"id": "mine"})
    await gateway.delete("mine")
    announced = (await reset(gateway, declared.session_id)).json()["session_id"]
    for _ in range(2):
        for session_id in ("mine", declared.session_id, UNKNOWN):
            refused = await create(gateway, {"id": session_id})
            assert (refused.status, refused.code, refused.session_id) == (404, "not_found", None)
        await gateway.coordinator.prune("default", 0)
    made = await create(gateway, {"id": announced})
    assert (made.status, made.json()["generation"]) == (201, 2)


@pytest.mark.parametrize(
    ("body", "options", "code"),
    [
        ({"id": ""}, {}, "invalid_session_id"),
        ({"id": 5}, {}, "invalid_session_id"),
        ({"id": None}, {}, "invalid_session_id"),
        ({"id": ".."}, {}, "invalid_session_id"),
        ({"id": "x" * 257}, {}, "invalid_session_id"),
        ({"id": "\ud800"}, {}, "invalid_session_id"),
        ({"id": "a\n"}, {}, "invalid_session_id"),
        (None, {"session_id": "x" * 257}, "invalid_session_id"),
        (None, {"session_key": "x" * 257}, "invalid_session_key"),
        ({"id": "a"}, {"session_key": "a\tb"}, "invalid_session_key"),
        ([], {}, "invalid_json"),
    ],
)
async def test_a_wrong_creation_is_refused(gateway, store_server, body, options, code):
    """B3, C1: 400 before any write."""
    refused = await create(gateway, body, **options)
    assert (refused.status, refused.code, refused.headers["x-should-retry"]) == (400, code, "false")
    assert dump(store_server) == {}


async def test_a_fork_starts_with_the_transcript(start):
    """D2, C6: a session of its own from there on, with a scope of its own, on any replica; its origin stays."""
    here, there = await start(), await start()
    await here.chat("one", session_id="mine")
    made = await fork(there, "mine")
    assert made.status == 201
    shown = made.json()
    assert (shown["kind"], shown["parent"], shown["history"], shown["turns"]) == ("m", "mine", "store", 0)
    assert made.session_id == shown["id"]
    assert made.headers["X-Hermes-Scope"] == shown["scope"]
    await here.chat("two", session_id=shown["id"])
    await there.chat("three", session_id="mine")
    assert await texts(here, shown["id"]) == ["one", "one", "two", "two"]
    assert await texts(here, "mine") == ["one", "one", "three", "three"]
    await here.delete("mine")
    assert (await there.chat("four", session_id=shown["id"])).status == 200


async def test_a_fork_of_a_declared_session_is_not_declared(gateway):
    """D2, C6: its scope is its own, the key does not lead to it, and its deletion moves no generation."""
    origin = await gateway.chat("hello", session_key="chat-42")
    made = await fork(gateway, origin.session_id)
    assert made.headers["X-Hermes-Scope"].startswith("gws_")
    assert "X-Hermes-Session-Key" not in made.headers
    said = await gateway.chat([user("hello")], session_id=made.session_id)
    assert said.headers["X-Hermes-Scope"] == made.headers["X-Hermes-Scope"]
    await gateway.delete(made.session_id)
    again = await gateway.chat("hello", session_key="chat-42")
    assert (again.session_id, again.headers["X-Hermes-Scope"]) == (
        origin.session_id,
        origin.headers["X-Hermes-Scope"],
    )


async def test_what_cannot_be_forked(start):
    """B1, B4: an unknown, a retired and another tenant's session are 404."""
    gateway = await start(keys=ApiKeys.load(None, "acme:a,beta:b"))
    said = await gateway.chat("hello", session_key="k", api_key="a")
    refusals = [
        await fork(gateway, "unknown", api_key="a"),
        await fork(gateway, said.session_id, api_key="b"),
        await fork(gateway, UNKNOWN, api_key="a"),
    ]
    announced = (await reset(gateway, said.session_id, api_key="a")).json()["session_id"]
    refusals += [await fork(gateway, said.session_id, api_key="a"), await fork(gateway, announced, api_key="a")]
    assert {(reply.status, reply.code) for reply in refusals} == {(404, "not_found")}


async def test_without_the_store_nothing_is_opened(start_own, own_server):
    """J1: a reset, a fork and a creation are 503 with a time to wait, as JSON."""
    gateway = await start_own(patience_ms=400)
    said = await gateway.chat("hello", session_key="chat-42")
    own_server.freeze()
    for asked in (
        create(gateway),
        create(gateway, session_key="k"),
        reset(gateway, said.session_id),
        fork(gateway, "s"),
    ):
        refused = await asked
        assert (refused.status, refused.code) == (503, "storage_unavailable")
        assert refused.headers["Retry-After"] == "1"
    own_server.thaw()
