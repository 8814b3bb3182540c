"""`python -m benchmarks [NAMES] [--seconds N] [--full] [--json]`: measures, prints a table, asserts nothing."""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from benchmarks import adapter, handoff, kill, library, memory, report, scale
from benchmarks.report import Row

Measure = Callable[[float], Awaitable[list[Row]]]

MEASURES: dict[str, Measure] = {
    "round-trips": adapter.round_trips,
    "library": library.throughput,
    "server-time": library.server_time,
    "requests": adapter.requests,
    "streams": adapter.streams,
    "hand-off": handoff.handoff,
    "kill": kill.kill,
    "memory": memory.memory,
    "scale": scale.scale,
}
LONG = frozenset({"scale"})
"""Left out unless named or asked for with --full."""
_QUIET = 0.35  # of the cores in use before anything is measured; the measurements want two for themselves
_LIMIT_S = 300  # far beyond what one of them takes: whatever hangs, the run ends by itself


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures ratios against baselines.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(MEASURES)}")
    parser.add_argument("--seconds", type=float, default=15, metavar="N", help="of measuring, each (default 15)")
    parser.add_argument("--full", action="store_true", help="also what takes minutes: a million conversations")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - MEASURES.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    if arguments.seconds <= 0:
        parser.error("--seconds must be more than 0")
    return arguments


def _say_if_busy() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores * _QUIET:
        print(f"this machine is busy (load {load:.1f} on {cores} cores): expect low figures", file=sys.stderr)


async def _measure(names: list[str], seconds: float) -> list[Row]:
    rows = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        async with asyncio.timeout(_LIMIT_S + seconds):
            rows += await MEASURES[name](seconds)
    return rows


def main() -> None:
    """Measures what was asked for."""
    arguments = _arguments()
    names = arguments.names or [name for name in MEASURES if arguments.full or name not in LONG]
    _say_if_busy()
    rows = asyncio.run(_measure(names, arguments.seconds))
    if arguments.json:
        print(report.as_json(rows))
    else:
        report.show(rows)


if __name__ == "__main__":
    main()
