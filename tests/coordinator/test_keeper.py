"""The keeper: leases that go on while their turns run, and turns that hear when they do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from time import monotonic

import pytest

from coordinator.keeper import Keeper, Kept
from coordinator.settings import Settings
from tests.coordinator.turns import CANCELLING, RUNNING, TENANT, Stop, lease_left_ms
from tests.support.servers import StoreServer
from tests.support.waiting import until

LEASE_MS = 600
FOR_EVER = float("inf")


class Ward:
    """A keeper, leases in the store for it to keep, and what it told their holders."""

    def __init__(self, server: StoreServer, keeper: Keeper) -> None:
        self.server = server
        self.keeper = keeper
        self.told: list[tuple[str, str]] = []

    def take(
        self, turn: str, *, left_s: float = LEASE_MS / 1000, ends_s: float = FOR_EVER, tenant: str = TENANT
    ) -> Kept:
        """A lease as a grant leaves it, kept from now on."""
        seconds, micros = self.server.cli("TIME")
        until_ms = int(seconds) * 1000 + int(micros) // 1000 + LEASE_MS
        self.server.cli("ZADD", RUNNING.replace(TENANT, tenant), until_ms, turn)
        kept = Kept(tenant, turn, monotonic() + left_s, monotonic() + ends_s, lambda reason: self._tell(turn, reason))
        self.keeper.keep(kept)
        return kept

    def _tell(self, turn: str, reason: str) -> None:
        self.told.append((turn, reason))

    async def until_told(self, *told: tuple[str, str], timeout_s: float = 5) -> None:
        """Wait until exactly this was told."""
        await until(lambda: len(self.told) >= len(told), timeout_s=timeout_s, what=f"{told}, not {self.told}")
        assert sorted(self.told) == sorted(told)


@pytest.fixture
async def ward(store_server: StoreServer) -> AsyncIterator[Ward]:
    """A keeper with leases of 600 ms."""
    async with Keeper(store_server.url, Settings(lease_ms=LEASE_MS)) as keeper:
        yield Ward(store_server, keeper)


async def test_a_lease_goes_on_for_as_long_as_it_is_kept(ward: Ward) -> None:
    """G5: renewed every third of a lease, by the store's clock and by the holder's own; let go, it is left alone."""
    kept, began = ward.take("t"), monotonic()
    await until(lambda: kept.deadline > began + 3 * LEASE_MS / 1000)
    left = lease_left_ms(ward.server, "t")
    assert left is not None
    assert LEASE_MS / 3 < left <= LEASE_MS
    ward.keeper.release("t")
    await until(lambda: (lease_left_ms(ward.server, "t") or 0) < 0)
    assert ward.told == []


async def test_one_call_for_all_turns_of_a_tenant(ward: Ward, stop: Stop) -> None:
    """G5: one renewal call per tenant and at most 200 turns in it."""
    calls: list[tuple[str, int]] = []
    stop.watching("turn_renew", lambda tenant, turns: calls.append((tenant, len(turns))))
    for number in range(230):
        ward.take(f"t{number}", left_s=30)
    ward.take("other", tenant="beta", left_s=30)
    calls.clear()
    ward.keeper.hurry()
    await until(lambda: len(calls) >= 3)
    assert sorted(calls[:3]) == [("beta", 1), (TENANT, 30), (TENANT, 200)]


async def test_a_failed_renewal_is_made_again_within_the_lease(ward: Ward, stop: Stop) -> None:
    """G5, B11: an absence of the store shorter than the lease costs nobody a turn."""
    stop.failing("turn_renew", times=2)
    kept, began = ward.take("t"), monotonic()
    await until(lambda: kept.deadline > began + 2 * LEASE_MS / 1000)
    assert ward.told == []


async def test_no_error_ends_the_renewals(ward: Ward, stop: Stop) -> None:
    """B73: whatever a renewal fails of, the next ones are made."""
    stop.failing("turn_renew", RuntimeError("what nobody thought of"), times=2)
    kept, began = ward.take("t"), monotonic()
    await until(lambda: kept.deadline > began + 2 * LEASE_MS / 1000)
    assert ward.told == []


async def test_without_the_store_a_turn_ends_by_its_own_deadline(ward: Ward, stop: Stop) -> None:
    """G5, G9: counted from before the last renewal was sent, it is over here while nobody else can be granted."""
    over = stop.failing("turn_renew")
    began = monotonic()
    ward.take("t")
    await ward.until_told(("t", "lost"))
    assert LEASE_MS / 1000 <= monotonic() - began < LEASE_MS / 1000 + 0.2
    over.set()
    await asyncio.sleep(0)
    assert ward.keeper.count == 0


async def test_a_lease_that_is_gone_is_told_at_the_next_renewal(ward: Ward) -> None:
    """G5, B11: taken by somebody, or by hand: lost within a third of a lease; its neighbours go on."""
    ward.take("t")
    other = ward.take("other")
    ward.server.cli("ZREM", RUNNING, "t")
    began = monotonic()
    await ward.until_told(("t", "lost"))
    assert monotonic() - began < LEASE_MS / 1000 / 3 + 0.2
    assert ward.server.cli("ZSCORE", RUNNING, "t") is None
    await until(lambda: other.deadline > began + 2 * LEASE_MS / 1000)
    assert ward.told == [("t", "lost")]


async def test_a_wish_to_stop_is_told_at_the_next_renewal(ward: Ward) -> None:
    """G7: durable state is enough; no message has to arrive."""
    ward.take("t")
    ward.server.cli("SADD", CANCELLING, "t")
    await ward.until_told(("t", "cancelled"))


async def test_a_message_has_it_look_at_once(store_server: StoreServer) -> None:
    """G7: the message only speeds it up: here by ten seconds."""
    async with Keeper(store_server.url, Settings(lease_ms=30_000)) as keeper:
        ward = Ward(store_server, keeper)
        ward.take("t", left_s=30)
        store_server.cli("SADD", CANCELLING, "t")
        began = monotonic()
        keeper.hurry()
        await ward.until_told(("t", "cancelled"))
        assert monotonic() - began < 1


async def test_a_turn_that_was_let_go_hears_nothing_more(ward: Ward, stop: Stop) -> None:
    """G5: an answer that says lost, and comes after the turn was committed, reaches nobody."""
    held, go = stop.slow("turn_renew")
    ward.take("t", left_s=30)
    ward.server.cli("ZREM", RUNNING, "t")
    await until(held.is_set)
    ward.keeper.release("t")
    go.set()
    await until(lambda: ward.keeper.count == 0)
    ward.take("next")
    ward.server.cli("ZREM", RUNNING, "next")
    await ward.until_told(("next", "lost"))


async def test_what_slept_past_its_deadline_is_not_revived(ward: Ward, stop: Stop) -> None:
    """G2, G5: nobody took the lease, yet the holder is over: others count on that it stopped by its own deadline."""
    renewed: list[str] = []
    stop.watching("turn_renew", lambda tenant, turns: renewed.extend(turns))
    ward.take("slept", left_s=-0.001)
    ward.keeper.hurry()
    await ward.until_told(("slept", "lost"))
    assert renewed == []


async def test_a_slow_answer_is_no_pause(store_server: StoreServer, stop: Stop) -> None:
    """G5: an answer that takes most of a third of a lease does not put the next renewal off by as much."""
    sent: list[float] = []
    stop.late("turn_renew", 0.45)
    stop.watching("turn_renew", lambda tenant, turns: sent.append(monotonic()))
    async with Keeper(store_server.url, Settings(lease_ms=1_500)) as keeper:
        ward = Ward(store_server, keeper)
        ward.take("t", left_s=1.5)
        await until(lambda: len(sent) >= 3)
        assert ward.told == []
    assert min(later - earlier for earlier, later in pairwise(sent)) < 0.75


async def test_nothing_is_renewed_beyond_its_limit(ward: Ward) -> None:
    """G5: at the end of `turn_limit` the lease runs out, and the turn hears that it is lost."""
    began = monotonic()
    ward.take("t", ends_s=0.3)
    await ward.until_told(("t", "lost"))
    assert monotonic() - began < 0.3 + LEASE_MS / 1000 + 0.3
    await until(lambda: (lease_left_ms(ward.server, "t") or 0) < 0)


async def test_a_busy_loop_does_not_end_its_leases(ward: Ward) -> None:
    """G5, B26: renewal goes on outside the loop that runs the turns, here blocked for more than two leases."""
    ward.take("t")
    time.sleep(2.2 * LEASE_MS / 1000)
    assert (lease_left_ms(ward.server, "t") or 0) > 0
    await asyncio.sleep(0.05)
    assert ward.told == []


async def test_a_loop_that_stopped_ticking_keeps_nothing(ward: Ward, stop: Stop) -> None:
    """G5, B73: a process whose turns stand still for four leases does not hold its conversations for ever."""
    renewals: list[float] = []
    stop.watching("turn_renew", lambda tenant, turns: renewals.append(monotonic()))
    ward.take("t")
    began = monotonic()
    time.sleep(5.5 * LEASE_MS / 1000)
    assert (lease_left_ms(ward.server, "t") or 0) < 0
    assert renewals[-1] - began < 4.5 * LEASE_MS / 1000
    await ward.until_told(("t", "lost"))


async def test_a_replica_that_ends_tells_all(ward: Ward) -> None:
    """J6: each holder hears once that its turn is interrupted."""
    for turn in ("t1", "t2"):
        ward.take(turn)
    ward.keeper.interrupt_all()
    await ward.until_told(("t1", "interrupted"), ("t2", "interrupted"))
    assert ward.keeper.count == 0


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0"])
async def test_it_opens_and_closes_without_a_store(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """J1: a store that is away delays neither."""
    began = monotonic()
    async with Keeper(url, Settings(lease_ms=LEASE_MS)) as keeper:
        told: list[str] = []
        tell: Callable[[str], None] = told.append
        keeper.keep(Kept(TENANT, "t", monotonic() + 0.3, FOR_EVER, tell))
        await until(lambda: told == ["lost"])
    assert monotonic() - began < 2
    assert "tried again" in caplog.text
