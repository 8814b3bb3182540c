"""turn_begin: many at the same moment, each on a connection of its own."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.identity import Target
from coordinator.outcomes import Granted, Queued
from coordinator.steps import Begun
from tests.lua.stage import CHOSEN, KEY, OPENING, Stage, at_once

RACERS = 20


async def race(url: str, target: Target, **changes: Any) -> list[Begun]:
    """Twenty replicas ask for the conversation at the same moment; what each was answered, by number."""
    return await at_once(
        url, RACERS, lambda racer, number: racer.begin(f"{number:032x}", target, by=f"r{number}", **changes)
    )


async def test_one_of_many_at_once_is_granted(stage: Stage, store_url: str) -> None:
    """G1, G3: twenty begins at once on one session are one grant and nineteen waiters, in order of arrival."""
    outcomes = await race(store_url, CHOSEN)
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1
    places = {outcome.place: n for n, outcome in enumerate(outcomes) if isinstance(outcome, Queued)}
    assert sorted(places) == list(range(1, RACERS))
    in_line = [f"{places[place]:032x}@r{places[place]}" for place in sorted(places)]
    assert await stage.members(stage.keys.queue(CHOSEN.cid)) == in_line
    assert await stage.client.zcard(stage.keys.running) == 1


async def test_many_at_once_are_granted_side_by_side(stage: Stage, store_url: str) -> None:
    """A3, A7: twenty begins at once on one opening are twenty grants, one session, twenty fences."""
    outcomes = await race(store_url, OPENING, exclusive=False)
    grants = [outcome for outcome in outcomes if isinstance(outcome, Granted)]
    assert len(grants) == RACERS
    assert len({grant.session_id for grant in grants}) == 1
    assert len({grant.fence for grant in grants}) == RACERS


@pytest.mark.parametrize("exclusive", [True, False])
async def test_one_key_is_one_turn_however_many_ask(stage: Stage, store_url: str, exclusive: bool) -> None:
    """F1, F3: twenty begins at once under one key run once; those not in line are told which turn has the key."""
    outcomes = await race(store_url, OPENING, exclusive=exclusive, digest=KEY, fingerprint="f1")
    (winner,) = [f"{n:032x}" for n, outcome in enumerate(outcomes) if isinstance(outcome, Granted)]
    told = {getattr(outcome, "turn", None) for outcome in outcomes if not isinstance(outcome, Granted)}
    assert told == {winner}
    assert (await stage.hash(stage.keys.idempotency(KEY)))["turn"] == winner
    assert await stage.members(stage.keys.running) == [winner]
