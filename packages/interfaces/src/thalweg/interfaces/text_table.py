"""Plain text tables that the command-line programs print. Not imported by the package itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """One line per row, columns as wide as their widest cell; the columns in `right` are right-aligned.

    Lines have no blanks at their ends.
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def number_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The header and the rows; columns with a name have numbers, to the right, others words, to the left."""
    return "\n".join(aligned([header, *rows], right=[column for column, name in enumerate(header) if name]))
