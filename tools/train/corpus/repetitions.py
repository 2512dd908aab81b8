"""Keeps copies of held-out files out of the training text, changed ones too, as vendored files often are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tools.train.corpus.documents import Document

MIN_LINE = 24
"""Characters from which on a line says where it comes from."""
MAX_SHARED = 0.3
"""Share of the lines of a document that one held-out document may have as well."""
MIN_LINES = 5
"""Below that many shared lines, a short file is no copy."""


def without_copies(documents: Iterable[Document], held_out: Sequence[Document]) -> list[Document]:
    """The documents without those that have too many lines of any one held-out document."""
    owners: dict[str, list[int]] = {}
    for number, item in enumerate(held_out):
        for line in _lines(item.text):
            owners.setdefault(line, []).append(number)
    return [item for item in documents if not _is_copy(item, owners)]


def _is_copy(document: Document, owners: dict[str, list[int]]) -> bool:
    lines = _lines(document.text)
    shared = Counter(owner for line in lines for owner in owners.get(line, ()))
    most = max(shared.values(), default=0)
    return most >= MIN_LINES and most > MAX_SHARED * len(lines)


def _lines(text: str) -> set[str]:
    return {stripped for line in text.splitlines() if len(stripped := line.strip()) >= MIN_LINE}
