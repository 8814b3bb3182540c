"""turn_begin: the number of a grant only grows."""

from __future__ import annotations

import pytest

from coordinator.identity import Target
from tests.lua.stage import CHOSEN, HOUR_MS, OPENING, T1, T2, T3, Stage


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
