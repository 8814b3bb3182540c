"""What the verbs print: JSON for programs, aligned text for people. No id is cut short, on a terminal or in a pipe."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_BEYOND_ANY_LINE = 100_000  # cells: a terminal breaks long lines by itself, and nothing of them is lost


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb answers: `data` for programs, `text` for people."""

    data: object
    text: RenderableType
    note: str = ""
    """A remark besides, for stderr."""
    exit_code: int = 0

    def show(self, *, as_json: bool) -> None:
        """Prints the one or the other to stdout."""
        if self.note:
            sys.stderr.write(f"{self.note}\n")
        sys.stdout.write(json.dumps(self.data, indent=2) + "\n" if as_json else self._aligned())

    def _aligned(self) -> str:
        console = Console(width=_BEYOND_ANY_LINE)
        with console.capture() as printed:
            console.print(self.text)
        return "".join(f"{line.rstrip()}\n" for line in printed.get().split("\n")[:-1])


def listing(rows: Sequence[Mapping[str, object]], nothing: str) -> RenderableType:
    """Rows below their column names; `nothing` when there are none. What may be long goes into the last column."""
    if not rows:
        return Text(nothing)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, value in rows[0].items():
        table.add_column(name.upper(), justify="right" if isinstance(value, int) else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def sheet(facts: Mapping[str, object]) -> RenderableType:
    """One fact a line: its name, its value."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for name, value in facts.items():
        table.add_row(name, _cell(value))
    return table


def moment(ms: int | None) -> str | None:
    """A time for people: UTC, as the replicas' logs have it."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ms else None


def lasting(ms: int) -> str:
    """A length of time for people."""
    return f"{ms / 1000:.1f}s"


def counted(number: int, thing: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _cell(value: object) -> Text:
    return Text("" if value is None else str(value))  # a Text is shown as it is: an id may look like markup
