"""session_record: what a host tells of its own session ids; a bound id stays bound."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.identity import record_digest
from coordinator.outcomes import Word
from tests.lua.declared import (
    ELSEWHERE,
    HOME,
    end,
    generation,
    host_id,
    moved_on,
    named,
    only_records_change,
    record,
    recorded,
)
from tests.lua.stage import HOUR_MS, T1, T2, Stage, at_once

FORKS = ("branch", "delegate", "tool", "review")


async def test_an_id_is_bound_to_the_current_generation(stage: Stage) -> None:
    """C3, D3: source, key, generation and nonce are those of the conversation as it is."""
    await stage.used(HOME)
    await moved_on(stage)
    grant = await stage.granted(T2, HOME)
    async with only_records_change(stage):
        answer = await recorded(stage, "p1", "chat-42")
    assert (answer.source, answer.key, answer.cid) == ("telegram", "chat-42", HOME.cid)
    assert (answer.generation, answer.nonce, answer.ended) == (2, grant.nonce, None)
    assert await stage.steps().host_session("acme", "p1") == answer


async def test_an_unknown_conversation_begins_with_it(stage: Stage) -> None:
    """C4, C1: its first generation is the one that the first turn finds, under the same source."""
    answer = await recorded(stage, "p1", "chat-42")
    assert (answer.generation, answer.cid) == (1, HOME.cid)
    assert await stage.members(stage.keys.tombstones) == [HOME.cid]
    assert not await stage.client.exists(stage.keys.sessions)
    grant = await stage.granted(T1, HOME)
    assert (grant.generation, grant.nonce) == (1, answer.nonce)


async def test_a_conversation_that_only_a_host_uses_outlives_the_retention_of_its_first_day(stage: Stage) -> None:
    """D2, E6: the record of another of its ids is a use; what is pruned is what nobody used."""
    first = await recorded(stage, "p1", "chat-42")
    await stage.client.zadd(stage.keys.tombstones, {HOME.cid: await stage.now_ms() - 2 * HOUR_MS})
    second = await recorded(stage, "p2", "chat-42")
    assert await stage.prune(HOME, horizon_ms=HOUR_MS) == 0
    third = await recorded(stage, "p3", "chat-42")
    assert first.nonce == second.nonce == third.nonce


async def test_a_bound_id_is_never_bound_again(stage: Stage) -> None:
    """C3: the same key again is nothing new, another key or source neither, also after a boundary."""
    first = await recorded(stage, "p1", "chat-42")
    assert await recorded(stage, "p1", "chat-42") == first
    async with only_records_change(stage):
        assert await recorded(stage, "p1", "chat-43") == first
        assert await recorded(stage, "p1", "chat-42", source="discord") == first
        assert await recorded(stage, "p1") == first
    await moved_on(stage)
    assert await recorded(stage, "p1", "chat-42") == first
    assert (await recorded(stage, "p2", "chat-42")).generation == 2
    assert await generation(stage, ELSEWHERE) == 0


async def test_an_id_without_a_key_is_bound_by_its_first_key(stage: Stage) -> None:
    """C3: until then it has a nonce of its own, and no conversation comes of it."""
    first = await recorded(stage, "p1")
    assert (first.key, first.cid, first.source) == (None, "", "telegram")
    assert await recorded(stage, "p1") == first
    assert set(await stage.snapshot()) == {stage.keys.record(record_digest("p1")).encode()}
    bound = await recorded(stage, "p1", "chat-42")
    assert (bound.key, bound.cid) == ("chat-42", HOME.cid)


@pytest.mark.parametrize("relation", FORKS)
async def test_a_fork_is_bound_to_none(stage: Stage, relation: Any) -> None:
    """C3, D2: with a key or without, now or later; and the conversation does not hear of it."""
    await recorded(stage, "p1", "chat-42")
    async with only_records_change(stage):
        first = await recorded(stage, "f1", "chat-42", parent="p1", relation=relation)
        assert (first.key, first.cid, first.relation, first.is_fork) == (None, "", relation, True)
        assert await recorded(stage, "f1", "chat-42") == first
        assert await recorded(stage, "f1", "chat-42", parent="p1", relation="compression") == first


async def test_what_follows_a_compression_is_in_its_parents_generation(stage: Stage) -> None:
    """C3, C6, D2: with or without the key, and although a boundary came in between."""
    first = await recorded(stage, "p1", "chat-42")
    await end(stage, "p1", "compression")
    for number, key in enumerate(("", "chat-42", "chat-43")):
        answer = await recorded(stage, f"c{number}", key, parent="p1", relation="compression")
        assert (answer.cid, answer.key, answer.generation, answer.nonce) == (HOME.cid, "chat-42", 1, first.nonce)
        assert not answer.is_fork
    await moved_on(stage)
    assert (await recorded(stage, "c9", "chat-42", parent="p1", relation="compression")).generation == 1


async def test_a_compression_of_an_unbound_parent_is_bound_by_its_own_key(stage: Stage) -> None:
    """C3: nothing is known of the parent, or it has no key: then the key that is given counts."""
    await recorded(stage, "p1")
    for child, parent in (("c1", "p1"), ("c2", "unknown"), ("c3", "")):
        assert (await recorded(stage, child, parent=parent, relation="compression")).cid == ""
        assert (await recorded(stage, child, "chat-42", parent=parent, relation="compression")).cid == HOME.cid


@pytest.mark.parametrize("relation", FORKS)
async def test_a_compression_of_a_fork_is_a_fork(stage: Stage, relation: Any) -> None:
    """D2: a fork that is compressed goes on on its own, and so does what follows that; no key makes it come back."""
    await recorded(stage, "p1", "chat-42")
    await recorded(stage, "f1", parent="p1", relation=relation)
    first = await recorded(stage, "f2", "chat-42", parent="f1", relation="compression")
    second = await recorded(stage, "f3", "chat-42", parent="f2", relation="compression")
    assert [(one.cid, one.key, one.is_fork) for one in (first, second)] == [("", None, True)] * 2


async def test_a_record_is_kept_from_its_last_use(stage: Stage) -> None:
    """E6: each telling of the id starts its retention anew."""
    key = stage.keys.record(record_digest("p1"))
    await recorded(stage, "p1", "chat-42")
    await stage.client.pexpire(key, 1_000)
    await recorded(stage, "p1")
    assert await stage.ttl_ms(key) > stage.settings.record_ttl_ms - 60_000


async def test_a_deleted_id_cannot_be_recorded(stage: Stage) -> None:
    """B1, E2: a late host finds nothing to write, also when the tombstone is gone."""
    await recorded(stage, "p1", "chat-42")
    assert await stage.delete(host_id("p1")) == []
    assert not await stage.client.exists(stage.keys.record(record_digest("p1")))
    async with stage.unchanged():
        assert await record(stage, "p1", "chat-42") == Word("not_found")
    await stage.prune(host_id("p1"))
    async with stage.unchanged():
        assert await record(stage, "p1") == Word("not_found")
    assert await stage.begin(T1, host_id("p1")) == Word("not_found")


async def test_an_end_stays_recorded(stage: Stage) -> None:
    """C6: telling an ended id again revives nothing and moves nothing."""
    await recorded(stage, "p1", "chat-42")
    await end(stage, "p1", "session_reset")
    answer = await recorded(stage, "p1", "chat-42")
    assert (answer.ended, answer.generation, await generation(stage)) == ("session_reset", 1, 2)
    assert await end(stage, "p1", "idle", token="e2") == Word("kept")


async def test_first_records_at_once_are_in_one_generation(stage: Stage, store_url: str) -> None:
    """C4, D2: twenty physical ids on one unused key, and turns among them, share generation and nonce."""

    async def act(racer: Stage, number: int) -> tuple[int, str]:
        if number % 4:
            host = await recorded(racer, f"p{number}", "chat-42")
            return host.generation, host.nonce
        await racer.begin(f"{number:032x}", HOME)
        conversation = await racer.hash(racer.keys.conversation(HOME.cid))
        return int(conversation["generation"]), conversation["nonce"]

    assert len(set(await at_once(store_url, 20, act))) == 1


async def test_an_id_spelled_like_a_key_is_another_thing(stage: Stage) -> None:
    """B3, C1: the same text as an id, a key, a source or another tenant's id shares no record."""
    texts = ("a|b", "a", "b|c", "*", "{}", "a:b", "é")
    for text in texts:
        await recorded(stage, text, text, source=text)
    assert len(await stage.client.keys("*:record:*")) == len(texts)
    assert len(await stage.client.keys("*:conversation:d*")) == len(texts)
    assert (await recorded(stage, "x1", "c", source="a|b")).cid != (await recorded(stage, "x2", "b|c", source="a")).cid


async def test_an_open_session_is_not_disturbed(stage: Stage) -> None:
    """C3: recording is no use of the session: neither its activity nor its place in the lists changes."""
    grant = await stage.used(HOME)
    async with only_records_change(stage):
        await recorded(stage, "p1", "chat-42")
    assert (await stage.granted(T2, named(HOME, grant.session_id))).session_id == grant.session_id
