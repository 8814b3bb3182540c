"""What is measured, as rows: a table for people, JSON for programs."""

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.table import Table

_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row's ratio (of a row without one: its measured value) is meant to be, such as `>= 0.75 x`."""

    relation: str
    value: float
    unit: str = "x"

    def __str__(self) -> str:
        return f"{self.relation} {number(self.value)} {self.unit}".strip()

    def reached(self, value: float) -> bool:
        """Whether the value is as it was meant to be."""
        return _COMPARE[self.relation](value, self.value)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. With a baseline its ratio is measured / baseline; a row without a goal explains its neighbours."""

    what: str
    measured: float
    unit: str
    against: str = ""
    """What the baseline is, '' without one."""
    baseline: float | None = None
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """None when the row has no baseline."""
        return None if self.baseline is None else self.measured / self.baseline

    @property
    def reached(self) -> bool | None:
        """None when the row has no goal."""
        if self.goal is None:
            return None
        ratio = self.ratio
        return self.goal.reached(self.measured if ratio is None or self.goal.unit != "x" else ratio)


def number(value: float) -> str:
    """A number with three digits that count, without an exponent."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show(rows: Sequence[Row]) -> None:
    """Prints the table."""
    table = Table(box=box.MARKDOWN)
    for heading in ("what", "measured", "baseline", "ratio", "goal", "reached"):
        table.add_column(heading, justify="left" if heading in ("what", "goal") else "right")
    for row in rows:
        baseline = f"{number(row.baseline)} {row.unit}" if row.baseline is not None else ""
        table.add_row(
            f"{row.what}, against {row.against}" if row.against else row.what,
            f"{number(row.measured)} {row.unit}",
            baseline,
            f"{number(row.ratio)} x" if row.ratio is not None else "",
            str(row.goal or ""),
            {True: "yes", False: "no", None: ""}[row.reached],
        )
    # As wide as it needs to be, so that it can be pasted into a page from any terminal.
    Console(width=200).print(table)


def as_json(rows: Sequence[Row]) -> str:
    """The rows as a JSON list."""
    found = [
        asdict(row) | {"ratio": row.ratio, "goal": str(row.goal) if row.goal else None, "reached": row.reached}
        for row in rows
    ]
    return json.dumps(found, indent=2)
