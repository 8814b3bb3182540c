"""Measuring side by side: the sides take turns in short rounds, and the median round of each counts."""

from collections.abc import Awaitable, Callable, Mapping
from statistics import median
from typing import TypeVar

ROUNDS = 5
"""Rounds a side; odd, so that the median is one of them."""

_WARM_UP = 0.5  # part of a round that is run first and not counted: connections, scripts and caches are there then

_T = TypeVar("_T")


async def interleaved(
    sides: Mapping[str, Callable[[float], Awaitable[_T]]], seconds: float, rounds: int = ROUNDS
) -> dict[str, list[_T]]:
    """What each side found in each round. `seconds` is what all of it may take; a side is told its share.

    Whatever else the machine does then meets all sides alike, which a comparison of two long runs could not say.
    """
    share_s = seconds / len(sides) / (rounds + _WARM_UP)
    for run in sides.values():
        await run(share_s * _WARM_UP)
    found: dict[str, list[_T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            found[name].append(await run(share_s))
    return found


async def medians(sides: Mapping[str, Callable[[float], Awaitable[float]]], seconds: float) -> dict[str, float]:
    """The median of each side's rounds."""
    return {name: median(found) for name, found in (await interleaved(sides, seconds)).items()}
