"""Figures: what a bench found, what was asked, and whether that holds.

Each bench is a script that prints its figures with show(). Run as `python bench/figures.py`, this
file reads the JSON lines of several benches from stdin and prints one table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number that a bench found."""

    figure: str
    """Name, with the unit as its suffix; a ratio has none."""
    value: float
    asked: float | None
    """What the design asks for; None = nothing, the figure is for information."""
    better: Literal["higher", "lower"]
    baseline: str
    """What the value is compared with, measured in the same run."""
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the value is as good as asked; None where nothing was asked."""
        if self.asked is None:
            return None
        return self.value >= self.asked if self.better == "higher" else self.value <= self.asked


def show(figures: Iterable[Figure], *, as_json: bool) -> None:
    """Print figures: one JSON line each, or a table."""
    rows = [{**asdict(figure), "holds": figure.holds} for figure in figures]
    if as_json:
        for row in rows:
            print(json.dumps(row))
    else:
        print_table(rows)


def print_table(rows: Sequence[dict]) -> None:
    """Print rows of figures as one aligned table."""
    head = ("figure", "value", "asked", "holds", "baseline", "note")
    cells = [head, *([_cell(row, column) for column in head] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    for line in cells:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def _cell(row: dict, column: str) -> str:
    value = row[column]
    if column == "holds":
        return {True: "yes", False: "NO", None: "-"}[value]
    if column == "asked" and value is not None:
        return f"{'>=' if row['better'] == 'higher' else '<='} {value:g}"
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print_table([json.loads(line) for line in sys.stdin])
