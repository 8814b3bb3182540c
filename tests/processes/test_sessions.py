"""Sessions over replicas that share nothing but the store."""

import asyncio

import pytest

from tests.support.clients import RoundRobin, chat


def user(content):
    """A user message."""
    return {"role": "user", "content": content}


def later(opening, *more):
    """The same conversation some turns later, its client keeping the history."""
    messages = [user(opening)]
    for text in more:
        messages += [{"role": "assistant", "content": messages[-1]["content"]}, user(text)]
    return messages


async def only(replies):
    """The one session that all of these were served in."""
    replies = await asyncio.gather(*replies)
    assert [reply.status for reply in replies] == [200] * len(replies)
    (session_id,) = {reply.session_id for reply in replies}
    return session_id


@pytest.mark.parametrize(
    ("between", "rounds"), [("nothing", 4), ("prune", 2), ("restart", 1), ("prune and restart", 1)]
)
async def test_a_deleted_opening_moves_on_and_never_back(fleet, between, rounds):
    """A3: on any replica it opens under a new id, later turns stay there, and deleting that moves on again, also after
    the tombstones were pruned and after all replicas were restarted."""
    ids: list[str] = []
    for _ in range(rounds):
        current = await only(fleet.chat("hello", at=n) for n in range(3))
        assert await only(fleet.chat(later("hello", "and now?"), at=n, stream=n == 1) for n in range(3)) == current
        assert current not in ids
        ids.append(current)
        assert (await fleet.delete(current)).status == 200
        if "prune" in between:
            await fleet.prune()
        if "restart" in between:
            await fleet.restart()
        gone = [await fleet.chat("hello", session_id=old, at=n) for old in ids for n in range(3)]
        assert {(reply.status, reply.code) for reply in gone} == {(404, "not_found")}
    assert await only(fleet.chat(later("hello", "and now?")) for _ in range(3)) not in ids


@pytest.mark.parametrize("chosen", [True, False])
async def test_a_deleted_id_is_gone_for_ever(fleet, chosen):
    """B1, E1: an id deleted on one replica is 404 on all, for turns, reads and deletions, before and after pruning."""
    session_id = (await fleet.chat("hello", session_id="chat-42" if chosen else None)).session_id
    assert (await fleet.delete(session_id)).status == 200
    for pruned in (False, True):
        if pruned:
            await fleet.prune()
        for n in range(3):
            replies = [
                await fleet.chat("hello", session_id=session_id, at=n),
                await fleet.chat("hello", session_id=session_id, at=n, stream=True, key=f"k{n}"),
                await fleet.session(session_id, at=n),
                await fleet.delete(session_id, "?force=true", at=n),
            ]
            assert [(reply.status, reply.code) for reply in replies] == [(404, "not_found")] * 4
    assert fleet.upstream.count == 1


async def test_first_requests_that_race_share_one_session(fleet):
    """A3: after a deletion 20 simultaneous first requests, spread over the replicas, share one new id; ten rounds."""
    seen = []
    for _ in range(10):
        current = await only(fleet.chat("hello") for _ in range(20))
        assert current not in seen
        seen.append(current)
        assert (await fleet.delete(current)).status == 200
    assert fleet.upstream.count == 200


async def test_a_deletion_is_seen_at_once(fleet):
    """A3, E2: what one replica deleted is unknown to the next request of any other; 50 times in a row."""
    for round_ in range(50):
        session_id = f"s{round_}"
        assert (await fleet.chat("hello", session_id=session_id)).status == 200
        assert (await fleet.delete(session_id)).status == 200
        assert (await fleet.chat("hello", session_id=session_id)).status == 404
    assert fleet.upstream.count == 50


async def test_a_session_has_one_turn_at_a_time(fleet):
    """G1: 30 requests for one session, spread over the replicas, run one after another upstream."""
    asked = (fleet.chat(f"hello {n}", session_id="s", stream=n % 2 == 0, model="slow:0.005") for n in range(30))
    replies = await asyncio.gather(*asked)
    assert [reply.status for reply in replies] == [200] * 30
    assert (fleet.upstream.count, fleet.upstream.max_overlap) == (30, 1)
    assert (await fleet.session("s")).json()["turns"] == 30


async def test_first_come_first_served_over_replicas(fleet):
    """G3, G4: waiters on different replicas are served in their order, each with the history of those before it."""
    asking = [await fleet.hold("first", session_id="s")]
    for n in range(5):
        asking.append(asyncio.create_task(fleet.chat(f"waiter {n}", session_id="s")))
        await fleet.queued("s", n + 1)
    fleet.upstream.release()
    assert [(await asked).status for asked in asking] == [200] * 6
    sent = [[message["content"] for message in call.json()["messages"]] for call in fleet.upstream.calls]
    texts = ["first", *(f"waiter {n}" for n in range(5))]
    assert sent == [[each for text in texts[:n] for each in (text, text)] + [texts[n]] for n in range(6)]


async def test_a_forced_deletion_reaches_the_replica_that_runs_the_turn(fleet):
    """E3, G7: deleting through another replica stops the turn, sends its waiters home, and closes the upstream."""
    running = await fleet.hold("hello", session_id="s", at=0)
    waiting = asyncio.create_task(fleet.chat("again", session_id="s", at=1))
    await fleet.queued("s")
    assert (await fleet.delete("s", at=2)).code == "session_busy"
    assert (await fleet.delete("s", "?force=true", at=2)).status == 200
    assert ((await waiting).code, (await running).code) == ("not_found", "turn_cancelled")
    await fleet.upstream.until(lambda up: up.aborted == 1)
    assert fleet.upstream.count == 1


async def test_a_balancer_without_stickiness(fleet):
    """A2, B2, H3: three replicas in turn hold whole conversations of both kinds, JSON and streams, turn after turn."""
    urls = RoundRobin([replica.url for replica in fleet.replicas])
    openings, said = [f"opening {n}" for n in range(4)], dict[str, list[str]]()
    for turn in range(5):
        for opening in openings:
            text, stream = f"{opening}, turn {turn}", turn % 2 == 1
            said.setdefault(opening, []).append(text)
            whole = later(*said[opening])
            implicit = await chat(fleet.http, next(urls), whole, stream=stream)
            explicit = await chat(fleet.http, next(urls), text, stream=stream, session_id=f"chosen {opening}")
            assert (implicit.status, explicit.status) == (200, 200)
            assert implicit.text() == explicit.text() == text
            sent = [call.json()["messages"] for call in fleet.upstream.calls[-2:]]
            assert [(message["role"], message["content"]) for message in sent[0]] == [
                (message["role"], message["content"]) for message in sent[1]
            ]
    listed = (await fleet.request("GET", "/api/sessions")).json()["data"]
    assert sorted((session["kind"], session["turns"]) for session in listed) == [("i", 5)] * 4 + [("x", 5)] * 4
