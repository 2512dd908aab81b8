"""Rows as long as the vocabulary, so many at a time that they fit into a bounded piece of memory."""

from __future__ import annotations

from collections.abc import Iterator

SIBLING_ELEMENTS = 1 << 26
"""What is repeated for siblings at a time, 256 MiB of float32: a request may want thousands of outputs."""


def slabs(num_rows: int, vocab_size: int, max_elements: int) -> Iterator[slice]:
    """All of so many rows, in order, with at most `max_elements` numbers in each part but at least one row."""
    count = max(1, max_elements // vocab_size)
    return (slice(start, start + count) for start in range(0, num_rows, count))
