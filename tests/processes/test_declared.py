"""Conversations that a host declares, on three real replicas without stickiness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.processes.fleet import Fleet
from tests.support.clients import Reply

HOUR_MS = 3_600_000


async def at_once(fleet: Fleet, count: int, session_key: str, *texts: str) -> list[Reply]:
    """That many first messages at the same moment, spread over the replicas."""
    barrier = asyncio.Barrier(count)

    async def one(number: int) -> Reply:
        await barrier.wait()
        text = texts[number] if texts else f"hello {number}"
        return await fleet.chat(text, at=number % 3, session_key=session_key)

    return await asyncio.gather(*map(one, range(count)))


async def reset(fleet: Fleet, session_id: str, *, at: int, key: str) -> Reply:
    """A reset under a key."""
    return await fleet.request("POST", f"/api/sessions/{session_id}/reset", at=at, key=key)


async def listed(fleet: Fleet) -> set[str]:
    """The ids of all sessions."""
    return {each["id"] for each in (await fleet.request("GET", "/api/sessions?limit=100")).json()["data"]}


async def rest(fleet: Fleet, ms: int) -> None:
    """Lets the one declared conversation rest, as time would."""

    def age() -> None:
        seconds, micros = fleet.server.cli("TIME")
        [key] = fleet.server.cli("KEYS", "*:conversation:d*")
        fleet.server.cli("HSET", key, "active_ms", int(seconds) * 1000 + int(micros) // 1000 - ms)

    await asyncio.to_thread(age)


@pytest.mark.timeout(60)
async def test_first_requests_on_an_unused_key_share_one_session(fleet: Fleet) -> None:
    """C4: twenty behind a barrier, twenty times: one id in all answers, one binding, no other session listed."""
    seen: set[str] = set()
    for round_number in range(20):
        said = await at_once(fleet, 20, f"key-{round_number}")
        assert [reply.status for reply in said] == [200] * 20
        assert {reply.headers["X-Hermes-Session-Key"] for reply in said} == {f"key-{round_number}"}
        assert len({reply.headers["X-Hermes-Scope"] for reply in said}) == 1
        [session_id] = {reply.session_id for reply in said}
        assert session_id is not None
        assert session_id not in seen
        seen.add(session_id)
        assert await listed(fleet) == seen
    assert len(fleet.server.cli("KEYS", "*:conversation:*")) == 20
    assert fleet.upstream.count == 400


async def test_one_reset_sent_many_times_is_one(fleet: Fleet) -> None:
    """C7, B62: five times in parallel, once during a new turn, once after another reset: one bump, no turn hurt."""
    first = await fleet.chat("hello", session_key="chat-42")
    assert first.session_id is not None
    current = first.session_id
    for round_number in range(10):
        key = f"r{round_number}"
        answers = await asyncio.gather(*(reset(fleet, current, at=i % 3, key=key) for i in range(5)))
        assert {(answer.status, answer.body) for answer in answers} == {(200, answers[0].body)}
        opened = answers[0].json()
        assert opened["generation"] == 2 * round_number + 2
        newer = await fleet.hold("hello", session_key="chat-42")
        assert (await reset(fleet, current, at=0, key=key)).body == answers[0].body
        fleet.upstream.release()
        said = await newer
        assert (said.status, said.session_id) == (200, opened["session_id"])
        other = await reset(fleet, opened["session_id"], at=1, key=f"other-{key}")
        assert other.json()["generation"] == opened["generation"] + 1
        after = await fleet.chat("hello", session_key="chat-42")
        assert (await reset(fleet, current, at=2, key=key)).body == answers[0].body
        assert after.session_id == other.json()["session_id"]
        assert after.session_id is not None
        assert (await fleet.session(after.session_id)).json()["generation"] == 2 * round_number + 3
        current = after.session_id


async def test_turns_racing_resets_are_wholly_in_one_generation(fleet: Fleet) -> None:
    """C7, D4: whoever is answered was asked of the model under the scope of its own session; the others are stale."""
    current = (await fleet.chat("hello", session_key="chat-42")).session_id
    for round_number in range(20):
        assert current is not None
        texts = [f"round {round_number} turn {number}" for number in range(6)]
        said, done = await asyncio.gather(
            at_once(fleet, 6, "chat-42", *texts), reset(fleet, current, at=round_number % 3, key=f"k{round_number}")
        )
        assert done.json()["generation"] == round_number + 2
        assert {(reply.status, reply.code) for reply in said} <= {(200, None), (409, "stale_generation")}
        for text, reply in zip(texts, said, strict=True):
            if reply.status == 200:
                assert reply.session_id in (current, done.json()["session_id"])
                [call] = fleet.upstream.calls_of(text)
                assert call.json()["prompt_cache_key"] == reply.headers["X-Hermes-Scope"]
        current = (await fleet.chat("next", session_key="chat-42")).session_id
        assert current == done.json()["session_id"]


@pytest.mark.timeout(60)
async def test_a_rest_racing_turns_fences_none_of_them(start_fleet: Callable[..., Fleet]) -> None:
    """C8: two hundred rounds in which the idle boundary comes due before, while and as turns are granted: each is
    answered, wholly in one generation, and one that was running when it came due is never fenced."""
    fleet = start_fleet(3, "--idle", "1h")
    current = (await fleet.chat("hello", session_key="chat-42")).session_id
    generation = 1
    for round_number in range(200):
        texts = [f"round {round_number} turn {number}" for number in range(3)]
        if round_number % 3 == 0:  # it came due before anybody asks
            await rest(fleet, 2 * HOUR_MS)
            said = await at_once(fleet, 3, "chat-42", *texts)
            moved = {1}
        elif round_number % 3 == 1:  # while a turn runs
            running = await fleet.hold(texts[0], session_key="chat-42", at=0)
            await rest(fleet, 2 * HOUR_MS)
            others = asyncio.gather(*(fleet.chat(text, session_key="chat-42") for text in texts[1:]))
            if round_number % 2:
                await fleet.queued(str(current), 2)
            fleet.upstream.release()
            said = [await running, *await others]
            moved = {0}
        else:  # at the same moment
            said, _ = await asyncio.gather(at_once(fleet, 3, "chat-42", *texts), rest(fleet, 2 * HOUR_MS))
            moved = {0, 1}
        assert [(reply.status, reply.code) for reply in said] == [(200, None)] * 3
        for text, reply in zip(texts, said, strict=True):
            [call] = fleet.upstream.calls_of(text)
            assert call.json()["prompt_cache_key"] == reply.headers["X-Hermes-Scope"]
        last = (await fleet.session((await fleet.chat("next", session_key="chat-42")).session_id or "")).json()
        ids = {str(reply.session_id) for reply in said}
        if 1 not in moved:
            assert ids == {current}
        if 0 not in moved:
            assert ids == {last["id"]}
        assert ids <= {current, last["id"]}
        assert last["generation"] - generation in moved | {1 if len(moved) == 2 else 0}
        current, generation = last["id"], last["generation"]
    assert fleet.upstream.max_overlap == 1
    assert await listed(fleet) == {current}
