"""Work that goes on without its caller: tried again while the store is away, awaited at the end, bounded."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from coordinator import ScriptError, StoreUnavailable
from coordinator.background import Background, until_done
from tests.support.waiting import until


@pytest.fixture
async def background():
    """One that waits half a second at its end."""
    async with Background(0.5) as running:
        yield running


class Duty:
    """Fails so many times with an error, and counts."""

    def __init__(self, failures=0, error=None):
        self.failures, self.error, self.calls = failures, error or StoreUnavailable("away"), 0

    async def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error


async def test_a_duty_is_done_again_until_it_is_done(background):
    """B40: while the store is away it is tried again, and no more once it was done."""
    duty = Duty(failures=2)
    background.see_to(duty, 10)
    await until(lambda: duty.calls == 3)
    await asyncio.sleep(0.3)
    assert duty.calls == 3


async def test_a_duty_ends_when_it_is_moot(background):
    """B40: a lease that has ended by itself needs nobody to end it."""
    duty = Duty(failures=1_000)
    background.see_to(duty, 0.4)
    await asyncio.sleep(0.8)
    calls = duty.calls
    assert 1 <= calls <= 3
    await asyncio.sleep(0.3)
    assert duty.calls == calls


@pytest.mark.parametrize("error", [ScriptError("a bug"), ValueError("a bug")])
async def test_a_duty_that_cannot_be_done_stops_none_behind_it(background, caplog, error):
    """B73: it is logged and dropped; the others are done, those that come later too."""
    bad, good = Duty(failures=1_000, error=error), Duty()
    background.see_to(bad, 10)
    background.see_to(good, 10)
    await until(lambda: good.calls == 1)
    later = Duty()
    background.see_to(later, 10)
    await until(lambda: later.calls == 1)
    assert bad.calls == 1
    assert "a bug" in caplog.text


async def test_a_long_backlog_is_worked_off_in_parts(background):
    """B40: what an outage left is done a hundred at a time, all of it."""
    at_once, most = 0, 0
    done = []

    def duty(number):
        async def work():
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1
            done.append(number)

        return work

    for number in range(350):
        background.see_to(duty(number), 10)
    await until(lambda: len(done) == 350)
    assert done == sorted(done)
    assert most == 100


async def test_leaving_waits_for_what_is_under_way():
    """J6: a release that was begun reaches the store although the process ends."""
    duty = Duty(failures=1)
    async with Background(2) as background:
        background.see_to(duty, 10)
    assert duty.calls == 2


async def test_leaving_has_a_limit():
    """J6: what hangs holds up no shutdown."""
    began = monotonic()
    async with Background(0.2) as background:
        task = background.spawn(asyncio.Event().wait())
    assert monotonic() - began < 1
    assert task.cancelled()


async def test_a_task_outlives_who_waits_for_it(background):
    """B55: cancelling who waits does not cut off what was begun."""
    go, done = asyncio.Event(), []

    async def work():
        await go.wait()
        done.append(True)

    waiting = asyncio.create_task(until_done(background.spawn(work()), 5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await until(lambda: done == [True])


async def test_waiting_for_a_task_has_a_limit_and_no_outcome(background):
    """B11: a failed or a slow release replaces no good answer."""

    async def fail():
        raise StoreUnavailable("away")

    await until_done(background.spawn(fail()), 1)
    hanging = background.spawn(asyncio.Event().wait())
    await until_done(hanging, 0.01)
    assert not hanging.done()
