"""Turns a report into markdown tables for documents: `python -m tools.train.evaluate.table evaluation.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any


def tables(figures: list[dict[str, Any]]) -> Iterator[str]:
    """One table for all figures of a measure that are about one set."""
    for (measure, over), group in groupby(figures, key=lambda figure: (figure["measure"], figure["over"])):
        yield f"{measure}, over {over}\n\n{_table(list(group))}\n"


def _table(figures: list[dict[str, Any]]) -> str:
    """Rows are what is measured, columns what of it; both in the order in which they were."""
    cells: dict[tuple[str, str], float] = {}
    for figure in figures:
        row, comma, column = figure["name"].partition(", ")
        if not comma or figure["measure"] == "losses":
            row, column = figure["name"], figure["unit"]
        cells[row, column] = figure["value"]
    rows, columns = dict.fromkeys(row for row, _ in cells), dict.fromkeys(column for _, column in cells)
    lines = [["", *columns], ["---"] * (1 + len(columns))]
    lines += [[row, *(_number(cells.get((row, column))) for column in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    print("\n".join(tables(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["figures"])))
