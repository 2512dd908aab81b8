"""The table of docs/concepts/sampling.md that says how every option gets along with every way of serving."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "sampling.md"
HEADING = "## Every option, served in every way"
STATUSES = ("works", "refused")


@dataclass(frozen=True)
class OptionTable:
    """What the page promises."""

    names: frozenset[str]
    """Fields and options that have a row."""
    statuses: dict[tuple[str, str], str]
    """(row, mode) -> one of `STATUSES`. A row is a name, or a name and how something is set."""


def read_table(text: str) -> OptionTable:
    """The first table below the heading. Raises ValueError for a page without it and for a cell that says neither."""
    _, found, section = text.partition(HEADING + "\n")
    if not found:
        raise ValueError(f"the page has no heading {HEADING!r}")
    header, _, *body = [_cells(line) for line in re.findall(r"^\|.*\|$", section.partition("\n## ")[0], re.MULTILINE)]
    names: set[str] = set()
    statuses: dict[tuple[str, str], str] = {}
    for label, *cells in body:
        names |= set(re.findall(r"^`(\w+)`", label))
        for mode, cell in zip(header[1:], cells, strict=True):
            place = label.replace("`", ""), mode
            if cell not in STATUSES or place in statuses:
                raise ValueError(f"{place} says {cell!r}; every cell says one of {STATUSES}, once")
            statuses[place] = cell
    return OptionTable(frozenset(names), statuses)


def documented() -> OptionTable:
    """The table as published."""
    return read_table(PAGE.read_text(encoding="utf-8"))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
