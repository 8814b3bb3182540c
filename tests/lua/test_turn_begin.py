"""turn_begin: which session a turn belongs to, and its grant. Waiting and keys have files of their own."""

from __future__ import annotations

import pytest

from coordinator.identity import Explicit, Target, parse_session_id, target_of
from coordinator.outcomes import Ended, Granted, Late, Word
from tests.lua.stage import CHOSEN, HOUR_MS, KEY, MINTED, OPENING, T1, T2, T3, TENANT, Stage


async def test_a_first_turn_opens_the_session_it_names(stage: Stage) -> None:
    """B1, K1: an unknown client-chosen id is created under that id, in plain fields."""
    before = await stage.now_ms()
    grant = await stage.granted(T1, CHOSEN, nonce="n1", by="r2", history="store", route="runs")
    fence = str(grant.fence)
    assert grant == Granted("chat-42", 1, "n1", grant.fence, history_kept=True, history=[], granted_ms=0)
    assert before <= grant.fence <= await stage.now_ms()
    conversation = await stage.hash(stage.keys.conversation(CHOSEN.cid))
    record = await stage.hash(stage.keys.turn(T1))
    assert {conversation["created_ms"], conversation["active_ms"], record["started_ms"]} == {fence}
    assert conversation == {
        "kind": "x", "history": "store", "source": "api_server", "session": "chat-42", "generation": "1",
        "nonce": "n1", "created_ms": fence, "active_ms": fence, "turns": "0", "fence": fence, "turn": T1,
        "holder": "r2",
    }  # fmt: skip
    assert record == {
        "state": "running", "cid": CHOSEN.cid, "session": "chat-42", "generation": "1", "fence": fence,
        "replica": "r2", "route": "runs", "key": "", "started_ms": fence,
    }  # fmt: skip
    assert await stage.members(stage.keys.live(CHOSEN.cid)) == [T1]
    assert await stage.members(stage.keys.turns(CHOSEN.cid)) == [T1]
    assert await stage.members(stage.keys.sessions) == [CHOSEN.cid]


async def test_a_grant_is_a_lease_and_a_record_that_ends_by_itself(stage: Stage) -> None:
    """G1, G6: the lease is one deadline in `running`; a record that nobody ends goes after the longest turn."""
    await stage.granted()
    left = await stage.lease_of(T1)
    assert left is not None
    assert stage.settings.lease_ms - 1_000 < left <= stage.settings.lease_ms
    kept_ms = stage.settings.turn_limit_ms + stage.settings.result_ttl_ms
    assert kept_ms - 2_000 < await stage.ttl_ms(stage.keys.turn(T1)) <= kept_ms
    assert await stage.ttl_ms(stage.keys.conversation(CHOSEN.cid)) == -1


@pytest.mark.parametrize("target", [OPENING, MINTED], ids=["opening", "minted"])
async def test_a_session_without_an_id_is_named_after_its_conversation(stage: Stage, target: Target) -> None:
    """A2: the id is conversation, generation and nonce; the next turn of the conversation lands there."""
    grant = await stage.granted(T1, target, nonce=16 * "a")
    assert grant.session_id == f"ses_{target.cid}_1_{16 * 'a'}"
    assert parse_session_id(grant.session_id) is not None
    await stage.finish(grant.fence, target=target)
    assert (await stage.granted(T2, target)).session_id == grant.session_id
    named = Target(target.cid, grant.session_id)
    await stage.abandon(None, turn=T2, target=target)
    assert (await stage.granted(T3, named)).session_id == grant.session_id


async def test_the_transcript_comes_with_the_grant(stage: Stage) -> None:
    """B2, G4: history is read under the lease, as opaque bytes in order."""
    messages = [b'{"n": 12345678901234567}', b"\x00\xff", b"[]"]
    await stage.used(CHOSEN, messages=messages)
    assert (await stage.granted(T2)).history == messages


async def test_a_client_that_keeps_the_history_gets_none(stage: Stage) -> None:
    """B2: who keeps the history is fixed when the session is created, whatever a later request says."""
    first = await stage.granted(T1, OPENING, history="client")
    await stage.finish(first.fence, target=OPENING, messages=[b"stray"])
    again = await stage.granted(T2, OPENING, history="store")
    assert (first.history_kept, again.history_kept, again.history) == (False, False, [])


async def test_the_next_generation_keeps_its_history_as_its_opener_asks(stage: Stage) -> None:
    """B2: the history's keeper belongs to the session, not to the conversation that had another before."""
    first = await stage.used(OPENING)
    await stage.delete(Target(OPENING.cid, first.session_id))
    assert not (await stage.granted(T2, OPENING, history="client")).history_kept
    assert (await stage.hash(stage.keys.conversation(OPENING.cid)))["history"] == "client"


async def test_too_late_is_not_carried_out(stage: Stage) -> None:
    """G13: past the end of its caller's patience an admission does nothing."""
    assert await stage.begin(T1, patience_s=-5) == Late()
    assert await stage.snapshot() == {}


async def test_a_repeated_begin_is_told_its_grant_again(stage: Stage) -> None:
    """J2: the same turn gets the same grant, session and fence, and leaves the same state."""
    await stage.used(CHOSEN, messages=[b"m1"])
    first = await stage.granted(T2, CHOSEN)
    async with stage.unchanged():
        assert await stage.begin(T2, CHOSEN) == first
        assert await stage.begin(T2, CHOSEN, policy="reject") == first


async def test_a_begin_repeated_after_the_end_is_told_the_end(stage: Stage) -> None:
    """J2, G8: the turn's token never starts a second turn; it is told how the first ended."""
    grant = await stage.granted(T1)
    await stage.finish(grant.fence)
    grant = await stage.granted(T2)
    await stage.abandon(grant.fence, "refused", turn=T2)
    async with stage.unchanged():
        assert await stage.begin(T1) == Ended("completed")
        assert await stage.begin(T2) == Ended("refused")


async def test_a_begin_repeated_after_the_grant_was_lost_is_not_granted(stage: Stage) -> None:
    """G1: neither a turn whose place was taken nor one whose session was deleted is granted again."""
    await stage.granted(T1)
    await stage.end_lease(T1)
    await stage.granted(T2)
    async with stage.unchanged():
        assert isinstance(await stage.begin(T1), Ended)
    await stage.delete(force=True)
    async with stage.unchanged():
        assert isinstance(await stage.begin(T2), Ended)


async def test_a_lease_that_nobody_took_is_still_its_holders(stage: Stage) -> None:
    """G2: a repeated begin after the lease ended, with nobody in between, is the same grant."""
    grant = await stage.granted(T1)
    await stage.end_lease(T1)
    assert await stage.begin(T1) == grant


async def test_a_retired_id_is_refused_for_good(stage: Stage) -> None:
    """B1, E1: a deleted client-chosen id is not found, also once its tombstone is pruned."""
    await stage.used(CHOSEN)
    await stage.delete(CHOSEN)
    async with stage.unchanged():
        assert await stage.begin(T2, CHOSEN) == Word("not_found")
    assert await stage.prune(CHOSEN) == 1
    async with stage.unchanged():
        assert await stage.begin(T2, CHOSEN) == Word("not_found")
    other = target_of(TENANT, Explicit("chat-43"))
    assert (await stage.granted(T2, other)).session_id == "chat-43"


async def test_an_id_of_our_pattern_is_never_created(stage: Stage) -> None:
    """B1: a minted id that is unknown or of another generation is not found, and nothing is written."""
    unknown = f"ses_{OPENING.cid}_1_{16 * 'b'}"
    assert await stage.begin(T1, Target(OPENING.cid, unknown)) == Word("not_found")
    assert await stage.snapshot() == {}
    current = (await stage.used(OPENING)).session_id
    async with stage.unchanged():
        for other in (unknown, current.replace("_1_", "_2_"), current[:-1] + "x"):
            assert await stage.begin(T2, Target(OPENING.cid, other)) == Word("not_found")


@pytest.mark.parametrize("pruned", [False, True], ids=["tombstone", "pruned"])
async def test_an_opening_moves_on_after_each_deletion(stage: Stage, pruned: bool) -> None:
    """A3, A5: n deletions give n+1 ids, the retired ones stay retired, and later turns stay on the newest."""
    ids = []
    for number in range(3):
        grant = await stage.used(OPENING, turn=f"{number:032x}")
        ids.append(grant.session_id)
        named = Target(OPENING.cid, grant.session_id)
        assert await stage.delete(named, generation=grant.generation, token=f"d{number}") == []
        if pruned:
            assert await stage.prune(OPENING) == 1
    newest = (await stage.used(OPENING, turn=T2)).session_id
    assert len({*ids, newest}) == 4
    assert (await stage.used(OPENING, turn=T3)).session_id == newest
    for retired in ids:
        assert await stage.begin(f"{9:032x}", Target(OPENING.cid, retired)) == Word("not_found")


async def test_a_deletion_opens_the_next_generation(stage: Stage) -> None:
    """A3: the generation in the record and in the id grows by one, and the session is no tombstone any more."""
    first = await stage.used(OPENING)
    await stage.delete(Target(OPENING.cid, first.session_id))
    assert await stage.members(stage.keys.tombstones) == [OPENING.cid]
    second = await stage.granted(T2, OPENING)
    assert second.generation == 2
    assert second.session_id == f"ses_{OPENING.cid}_2_{second.nonce}"
    assert second.nonce != first.nonce
    assert await stage.members(stage.keys.tombstones) == []
    assert await stage.members(stage.keys.sessions) == [OPENING.cid]
    assert (await stage.hash(stage.keys.conversation(OPENING.cid)))["turns"] == "0"


async def test_the_fence_grows_with_every_grant(stage: Stage) -> None:
    """G2: over a finished turn, a deletion and a stored fence in the future it only grows."""
    fences = [(await stage.used(OPENING, turn=T1)).fence]
    fences.append((await stage.used(OPENING, turn=T2)).fence)
    session = (await stage.hash(stage.keys.conversation(OPENING.cid)))["session"]
    await stage.delete(Target(OPENING.cid, session))
    fences.append((await stage.used(OPENING, turn=T3)).fence)
    future = await stage.now_ms() + HOUR_MS
    await stage.client.hset(stage.keys.conversation(OPENING.cid), "fence", future)
    fences += [(await stage.used(OPENING, turn=f"{number:032x}")).fence for number in range(3)]
    assert fences[-3:] == [future + 1, future + 2, future + 3]
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("loss", ["prune", "flushall"])
async def test_the_fence_grows_over_losing_everything(stage: Stage, loss: str) -> None:
    """G2, J12: after pruning, and after total loss, the next fence is above every earlier one."""
    fences = [(await stage.used(turn=f"{number:032x}")).fence for number in range(3)]
    # The clock is what carries it over, and it counts in ms: as many grants as ms is the most one could outrun it by.
    while await stage.now_ms() <= fences[-1]:
        pass
    if loss == "prune":
        assert await stage.prune(CHOSEN) == 1
    else:
        await stage.client.flushall()
    assert (await stage.granted(T2)).fence > max(fences)


async def test_the_same_id_in_another_tenant_is_another_session(stage: Stage) -> None:
    """B4: nothing of one tenant's conversation is seen or held by the other's."""
    await stage.granted(T1, CHOSEN)
    other = await stage.steps().turn_begin(
        "beta",
        target_of("beta", Explicit("chat-42")),
        T2,
        patience_s=60,
        expected="",
        nonce="n2",
        history="store",
        exclusive=True,
        policy="reject",
        route="chat",
        fingerprint="f1",
        digest=KEY,
    )
    assert isinstance(other, Granted)
    assert await stage.lease_of(T2) is None
