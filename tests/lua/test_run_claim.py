"""run_claim: accepted work whose replica died is started by another, once."""

from __future__ import annotations

from tests.lua.stage import HOUR_MS, OPENING, T1, T2, Stage, at_once


async def test_work_that_nobody_vouches_for_is_taken_over(stage: Stage) -> None:
    """I4: with its request, by whoever asks first; from then on that one vouches for it."""
    await stage.accepted(T1, request=b"work\x00")
    await stage.end_acceptance(T1)
    view = await stage.claim(by="r2")
    assert view is not None
    assert (view.turn, view.state, view.request, view.replica) == (T1, "accepted", b"work\x00", "r2")
    assert 0 < (await stage.acceptance_of(T1) or 0) <= stage.settings.vouch_ms
    assert (await stage.hash(stage.keys.turn(T1)))["replica"] == "r2"


async def test_work_that_is_vouched_for_is_not(stage: Stage) -> None:
    """I4: neither from the replica that accepted it nor from the one that took it over."""
    await stage.accepted(T1)
    async with stage.unchanged():
        assert await stage.claim(by="r2") is None
    await stage.end_acceptance(T1)
    await stage.claim(by="r2")
    async with stage.unchanged():
        assert await stage.claim(by="r3") is None


async def test_a_repeated_claim_is_the_same_claim(stage: Stage) -> None:
    """J2: whoever took it over is told so again."""
    await stage.accepted(T1)
    await stage.end_acceptance(T1)
    first = await stage.claim(by="r2")
    async with stage.unchanged(slack_ms=1_000):
        assert await stage.claim(by="r2") == first


async def test_what_is_over_is_not_taken_over(stage: Stage) -> None:
    """I4: neither what started, nor what ended, nor what left nothing; and it is not asked about again."""
    await stage.accepted(T1)
    await stage.granted(T1)
    await stage.accepted(T2, OPENING)
    await stage.abandon(None, "cancelled", turn=T2, target=OPENING)
    await stage.client.zadd(stage.keys.accepted, {T1: 1, T2: 1, 32 * "0": 1})
    for turn in (T1, T2, 32 * "0"):
        assert await stage.claim(turn) is None
    assert not await stage.client.exists(stage.keys.accepted)


async def test_a_vouch_from_before_the_clock_stepped_back_is_one_vouch(stage: Stage) -> None:
    """G9: work of a dead replica waits for one vouch and not for an hour."""
    await stage.accepted(T1)
    await stage.step_clock_back()
    assert await stage.claim(by="r2") is None
    assert (await stage.acceptance_of(T1) or HOUR_MS) <= stage.settings.vouch_ms


async def test_of_claims_at_once_one_takes_it(stage: Stage, store_url: str) -> None:
    """I4: twenty replicas ask at the same moment, and one starts it."""
    await stage.accepted(T1)
    await stage.end_acceptance(T1)
    views = await at_once(store_url, 20, lambda racer, number: racer.claim(by=f"r{number + 2}"))
    (winner,) = [view for view in views if view is not None]
    assert (await stage.hash(stage.keys.turn(T1)))["replica"] == winner.replica
