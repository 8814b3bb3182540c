"""session_reset: the boundary that opens a conversation's next generation."""

from __future__ import annotations

from coordinator.identity import Declared, Explicit, Target, target_of
from coordinator.outcomes import Ended, Reset, Word
from tests.lua.stage import DECLARED, HOUR_MS, KEY, OPENING, T1, T2, T3, T4, TENANT, Stage, at_once


async def done(stage: Stage, target: Target = DECLARED, **changes: object) -> Reset:
    """A reset of what can be reset."""
    answer = await stage.reset(target, **changes)  # type: ignore[arg-type]  # names of reset's own
    assert isinstance(answer, Reset), answer
    return answer


async def test_a_reset_opens_the_next_generation(stage: Stage) -> None:
    """C6: the generation and the id that the next turn will have are told, and it has them."""
    first = await stage.used(DECLARED, messages=[b"m"])
    reset = await done(stage, reason="session_switch")
    assert reset == Reset(
        generation=2,
        session_id=reset.session_id,
        ended_session_id=first.session_id,
        reason="session_switch",
        stopped=[],
    )
    conversation = await stage.hash(stage.keys.conversation(DECLARED.cid))
    assert (conversation["session"], conversation["generation"], conversation["ended_by"]) == (
        "",
        "2",
        "session_switch",
    )
    assert await stage.members(stage.keys.tombstones) == [DECLARED.cid]
    assert not await stage.client.exists(stage.keys.sessions)
    grant = await stage.granted(T2, DECLARED)
    assert (grant.session_id, grant.generation, grant.history) == (reset.session_id, 2, [])
    assert grant.fence > first.fence


async def test_what_is_left_is_put_aside_for_erasing(stage: Stage) -> None:
    """E4, E5: transcript gone, turns listed, also while those of an earlier generation are not erased yet."""
    for number in range(3):
        await stage.used(DECLARED, turn=f"{number:032x}", messages=[b"m"])
        await done(stage, token=f"t{number}")
    assert await stage.members(stage.keys.leftovers(DECLARED.cid)) == [f"{number:032x}" for number in range(3)]
    assert await stage.members(stage.keys.erasing) == [DECLARED.cid]
    assert not await stage.client.exists(stage.keys.messages(DECLARED.cid), stage.keys.turns(DECLARED.cid))


async def test_the_old_generation_is_fenced_and_its_waiters_leave(stage: Stage) -> None:
    """C7: it never waits: live turns are cancelled in that step, waiters are woken to be told that it moved."""
    first = await stage.granted(T1, DECLARED)
    await stage.begin(T2, DECLARED, by="r2")
    await stage.begin(T3, DECLARED)
    await stage.end_vouch(T3)
    async with stage.mailbox("r2") as received:
        assert (await done(stage)).stopped == [T1]
        assert await received() == [f"wake {T2}"]
    assert not await stage.client.exists(
        stage.keys.queue(DECLARED.cid), stage.keys.waiting, stage.keys.running, stage.keys.live(DECLARED.cid)
    )
    assert await stage.renew(T1) == (set(), {T1})
    assert await stage.finish(first.fence, target=DECLARED, messages=[b"late"]) == Word("cancelled")
    assert await stage.begin(T2, DECLARED, by="r2", expected=first.session_id) == Word("moved")
    assert await stage.abandon(first.fence, "cancelled", target=DECLARED) == "abandoned"
    view = await stage.status(T1, DECLARED)
    assert view is not None
    assert view.state == "cancelled"
    assert await stage.begin(T1, DECLARED) == Ended("cancelled")


async def test_a_dead_turn_loses_its_lease(stage: Stage) -> None:
    """C7, G6: it is not told of as stopped, and cannot write any more."""
    first = await stage.granted(T1, DECLARED)
    await stage.end_lease(T1)
    assert (await done(stage)).stopped == []
    assert await stage.finish(first.fence, target=DECLARED) == Word("lost")


async def test_what_was_never_opened_can_be_reset(stage: Stage) -> None:
    """C6: a conversation that a host only recorded moves on too; no session ended."""
    await stage.record()
    reset = await done(stage)
    assert (reset.generation, reset.ended_session_id) == (2, None)
    again = await done(stage, token="r2")
    assert (again.generation, again.ended_session_id) == (3, None)


async def test_conversations_of_openings_can_be_reset(stage: Stage) -> None:
    """C7: its next turn is in a new session."""
    first = await stage.used(OPENING)
    reset = await done(stage, Target(OPENING.cid, first.session_id))
    assert (await stage.granted(T2, OPENING)).session_id == reset.session_id != first.session_id


async def test_an_unknown_conversation_is_not_found(stage: Stage) -> None:
    """C7, J3: nothing appears."""
    assert await stage.reset(DECLARED, digest=KEY) == Word("not_found")
    assert await stage.snapshot() == {}


async def test_only_the_current_session_can_be_named(stage: Stage) -> None:
    """B1, C7: a retired one is not found; one that is announced and not opened yet is current."""
    first = await stage.used(DECLARED)
    second = await done(stage, Target(DECLARED.cid, first.session_id))
    async with stage.unchanged():
        assert await stage.reset(Target(DECLARED.cid, first.session_id), token="r2") == Word("not_found")
    third = await done(stage, Target(DECLARED.cid, second.session_id), token="r2")
    assert third.generation == 3


async def test_a_reset_can_be_conditional(stage: Stage) -> None:
    """C7: on the session's id or on the generation; not what was expected is stale, and nothing is done."""
    first = await stage.used(DECLARED)
    async with stage.unchanged():
        for expected in ("2", "11", first.session_id[:-1] + "x"):
            assert await stage.reset(expected=expected) == Word("stale")
    second = await done(stage, expected=first.session_id)
    assert await stage.reset(expected="1", token="r2") == Word("stale")
    assert (await done(stage, expected="2", token="r2")).generation == 3
    assert await stage.reset(expected=second.session_id, token="r3") == Word("stale")


async def test_a_repeated_reset_is_answered_as_the_first(stage: Stage) -> None:
    """C7, J2: the same token again names the same generation, session and turns, and bumps nothing."""
    await stage.granted(T1, DECLARED)
    first = await done(stage)
    async with stage.unchanged():
        assert await stage.reset() == first
    await stage.granted(T2, DECLARED)
    async with stage.unchanged():
        assert await stage.reset() == first


async def test_a_key_bumps_once_early_and_late(stage: Stage) -> None:
    """C7: the same key again, when turns ran and when other boundaries came after, answers the same."""
    first = await stage.used(DECLARED)
    reset = await done(stage, digest=KEY, token="r1")
    kept_ms = stage.settings.key_ttl_ms
    assert kept_ms - 2_000 < await stage.ttl_ms(stage.keys.idempotency(KEY)) <= kept_ms
    held = await stage.granted(T2, DECLARED)
    async with stage.unchanged():
        assert await stage.reset(digest=KEY, token="r2") == reset
    await stage.finish(held.fence, turn=T2, target=DECLARED)
    assert (await done(stage, token="r3")).generation == 3
    async with stage.unchanged():
        assert await stage.reset(digest=KEY, token="r4") == reset
    assert reset.ended_session_id == first.session_id


async def test_a_key_may_stay_used_for_ever(stage: Stage) -> None:
    """F7: `key_ttl` 0 gives it no expiry."""
    await stage.used(DECLARED)
    await done(stage, digest=KEY, settings={"key_ttl_ms": 0})
    assert await stage.ttl_ms(stage.keys.idempotency(KEY)) == -1


async def test_a_key_is_for_one_request(stage: Stage) -> None:
    """F2: of a reset or of a turn, another request under it is a conflict, and nothing is done."""
    await stage.keyed_grant(T1, OPENING)
    await stage.used(DECLARED, turn=T2)
    async with stage.unchanged():
        assert await stage.reset(digest=KEY, fingerprint="f2") == Word("conflict")
    other = 32 * "e"
    await done(stage, digest=other, fingerprint="f3")
    async with stage.unchanged():
        assert await stage.reset(digest=other, fingerprint="f4", token="r2") == Word("conflict")
        assert await stage.keyed(T3, DECLARED, digest=other) == Word("conflict")


async def test_the_source_is_part_of_the_name(stage: Stage) -> None:
    """C1: a reset of the same key under another source changes nothing here."""
    other = target_of(TENANT, Declared("discord", "chat-42"))
    first = await stage.used(DECLARED)
    await stage.used(other, turn=T2)
    await done(stage, other)
    assert (await stage.granted(T3, DECLARED)).session_id == first.session_id


async def test_no_generation_is_issued_again(stage: Stage) -> None:
    """C5: over resets, deletions and pruning it only grows, and no nonce comes back."""
    seen: list[tuple[int, str]] = []
    for number, turn in enumerate((T1, T2, T3, T4)):
        grant = await stage.used(DECLARED, turn=turn)
        seen.append((grant.generation, grant.nonce))
        if number == 0:
            await done(stage, token="r1")
        elif number == 1:
            await stage.delete(Target(DECLARED.cid, grant.session_id), generation=grant.generation)
        assert number < 2 or await stage.prune(DECLARED) == 1
        assert await stage.prune(DECLARED) == 1
    assert [generation for generation, _ in seen] == [1, 2, 3, 4]
    assert len({nonce for _, nonce in seen}) == 4


async def test_after_total_loss_no_scope_is_issued_again(stage: Stage) -> None:
    """C5, J12: the generation starts over, its nonce does not."""
    first = await stage.used(DECLARED)
    await stage.client.flushall()
    again = await stage.granted(T2, DECLARED)
    assert again.generation == first.generation
    assert (again.nonce, again.session_id) != (first.nonce, first.session_id)


async def test_a_lease_from_before_the_clock_stepped_back_is_one_lease(stage: Stage) -> None:
    """G9: its turn counts as live, and is stopped like any other."""
    await stage.granted(T1, DECLARED)
    await stage.client.zincrby(stage.keys.running, HOUR_MS, T1)
    assert (await done(stage)).stopped == [T1]


async def test_one_reset_sent_by_many_at_once_is_one(stage: Stage, store_url: str) -> None:
    """C7: twenty sendings under one key are answered alike, and one generation passes."""
    await stage.used(DECLARED)
    answers = await at_once(store_url, 20, lambda racer, number: racer.reset(DECLARED, digest=KEY, token=f"r{number}"))
    assert all(answer == answers[0] for answer in answers)
    assert isinstance(answers[0], Reset)
    assert answers[0].generation == 2
    assert (await stage.hash(stage.keys.conversation(DECLARED.cid)))["generation"] == "2"


async def test_of_conditional_resets_at_once_one_is_done(stage: Stage, store_url: str) -> None:
    """C7: twenty that all expect generation 1 are one reset and nineteen stale."""
    await stage.used(DECLARED)
    answers = await at_once(
        store_url, 20, lambda racer, number: racer.reset(DECLARED, expected="1", token=f"r{number}")
    )
    assert sum(isinstance(answer, Reset) for answer in answers) == 1
    assert answers.count(Word("stale")) == 19


async def test_other_conversations_are_untouched(stage: Stage) -> None:
    """C6: a boundary is its own conversation's; an id that a client chose bumps no declared generation."""
    chosen = target_of(TENANT, Explicit("chat-42"))
    await stage.granted(T1, chosen)
    await stage.used(DECLARED, turn=T2)
    await done(stage)
    assert await stage.renew(T1) == (set(), set())
    assert (await stage.hash(stage.keys.conversation(chosen.cid)))["generation"] == "1"
    assert await stage.delete(chosen, force=True) == [T1]
    assert (await stage.hash(stage.keys.conversation(DECLARED.cid)))["generation"] == "2"
