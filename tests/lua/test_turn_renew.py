"""turn_renew: leases go on, and their holders hear when they do not."""

from __future__ import annotations

from coordinator.identity import Target
from tests.lua.stage import CHOSEN, HOUR_MS, MINTED, OPENING, T1, T2, T3, T4, Stage


async def test_a_renewal_is_one_lease_from_now(stage: Stage) -> None:
    """G5: one call renews any number of turns of the tenant, whatever was left."""
    await stage.granted(T1, CHOSEN)
    await stage.granted(T2, OPENING)
    await stage.client.zincrby(stage.keys.running, -20_000, T1)
    await stage.client.zincrby(stage.keys.running, HOUR_MS, T2)
    assert await stage.renew(T1, T2) == (set(), set())
    for turn in (T1, T2):
        left = await stage.lease_of(turn)
        assert left is not None
        assert stage.settings.lease_ms - 1_000 < left <= stage.settings.lease_ms


async def test_an_ended_lease_that_nobody_took_goes_on(stage: Stage) -> None:
    """G2: a late heartbeat finds its turn as it left it."""
    grant = await stage.granted(T1)
    await stage.end_lease(T1)
    assert await stage.renew(T1) == (set(), set())
    assert (await stage.lease_of(T1) or 0) > 0
    assert await stage.finish(grant.fence) == "finished"


async def test_a_late_heartbeat_revives_nothing(stage: Stage) -> None:
    """E2: of a turn that finished, was given back, was taken over or never was, no key appears: it is lost."""
    grant = await stage.granted(T1)
    await stage.finish(grant.fence)
    grant = await stage.granted(T2)
    await stage.abandon(grant.fence, "failed", turn=T2)
    await stage.granted(T3)
    await stage.end_lease(T3)
    await stage.granted(T4)
    async with stage.unchanged():
        assert await stage.renew(T1, T2, T3, 32 * "0") == ({T1, T2, T3, 32 * "0"}, set())
    await stage.client.flushall()
    assert await stage.renew(T1, T4) == ({T1, T4}, set())
    assert await stage.snapshot() == {}


async def test_one_lost_turn_does_not_stop_the_others(stage: Stage) -> None:
    """G5: each turn of the call is judged for itself."""
    await stage.granted(T1)
    await stage.client.zincrby(stage.keys.running, -20_000, T1)
    assert await stage.renew(T2, T1, T3) == ({T2, T3}, set())
    assert (await stage.lease_of(T1) or 0) > 20_000


async def test_the_holder_hears_that_it_was_asked_to_stop(stage: Stage) -> None:
    """G7, E3: a deletion's live turns are cancelled, not merely lost; they hear it again until they ended."""
    grant = await stage.granted(T1, OPENING)
    await stage.granted(T2, MINTED)
    await stage.delete(Target(OPENING.cid, grant.session_id), force=True)
    async with stage.unchanged(slack_ms=1_000):
        assert await stage.renew(T1, T2) == (set(), {T1})
        assert await stage.renew(T1, T2) == (set(), {T1})
    await stage.abandon(grant.fence, "cancelled", target=OPENING)
    assert await stage.renew(T1) == ({T1}, set())


async def test_a_turn_asked_to_stop_keeps_its_lease_until_it_does(stage: Stage) -> None:
    """G7: it is told to stop and still renewed, so that nobody runs beside it meanwhile."""
    await stage.granted(T1)
    await stage.client.sadd(stage.keys.cancelling, T1)
    await stage.client.zincrby(stage.keys.running, -20_000, T1)
    assert await stage.renew(T1) == (set(), {T1})
    assert (await stage.lease_of(T1) or 0) > 20_000


async def test_nothing_to_renew(stage: Stage) -> None:
    """J3: an empty call answers and writes nothing."""
    assert await stage.renew() == (set(), set())
    assert await stage.snapshot() == {}
