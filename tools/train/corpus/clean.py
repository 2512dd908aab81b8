"""Turns files into documents: what is no text to learn from is dropped, and no long paragraph is kept twice."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

TAB_WIDTH = 8
MAX_LINE = 240
"""Characters; longer lines are data."""
MAX_DIGITS = 0.14
MAX_NON_ASCII = 0.02
MAX_BYTES = 400_000
MIN_CHARACTERS = 100
"""Of a document: less is an empty `__init__.py` or a stub."""
MIN_REPEATED = 160
"""Characters of a paragraph from which on a repetition is dropped."""
VENDORED = frozenset(
    {"_vendor", "_vendored", "vendor", "extern", "externals", "_bundled", "qt_editor", "_antlr", "_uarray", "_shgo_lib"}
    | {"array_api_compat", "array_api_extra", "cobyqa", "pyprima"}
)
"""Folders of other people's works, or of generated parsers, inside a package."""
_PARAGRAPH = re.compile(r"[^\n]+(?:\n[^\n]+)*\n*")
"""With the blank lines after it."""


def is_vendored(path: str) -> bool:
    """Whether a folder of the path holds another work, whose licence is not the package's."""
    return not VENDORED.isdisjoint(path.split("/")[:-1])


def clean(content: bytes) -> str | None:
    """The text of a file, or None when it is no text to learn from.

    Tabs become spaces, line ends \\n, lines of data go, and a long file is cut after its last whole line.
    """
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        return None
    lines = (line.expandtabs(TAB_WIDTH).rstrip() for line in re.split(r"\r\n|\r|\n", text))
    text = "\n".join(line for line in lines if len(line) <= MAX_LINE).strip("\n") + "\n"
    if "\0" in text or len(text) < MIN_CHARACTERS:
        return None
    if sum(map(str.isdigit, text)) > MAX_DIGITS * len(text):
        return None
    if sum(not character.isascii() for character in text) > MAX_NON_ASCII * len(text):
        return None
    return _cut(text)


def _cut(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= MAX_BYTES:
        return text
    return encoded[: encoded.rindex(b"\n", 0, MAX_BYTES) + 1].decode()


@dataclass(slots=True)
class Deduplicator:
    """Drops paragraphs that an earlier document had, whatever their indentation and line ends."""

    _seen: set[bytes] = field(default_factory=set)

    def unique(self, text: str) -> str:
        """The text without long paragraphs that were seen before, here or in an earlier call."""
        return "".join(paragraph for paragraph in _PARAGRAPH.findall(text) if self._is_new(paragraph))

    def _is_new(self, paragraph: str) -> bool:
        words = " ".join(paragraph.split())
        if len(words) < MIN_REPEATED:
            return True
        digest = hashlib.blake2b(words.encode(), digest_size=12).digest()
        is_new = digest not in self._seen
        self._seen.add(digest)
        return is_new
