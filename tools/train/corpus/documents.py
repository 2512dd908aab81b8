"""Documents on disk: the cleaned text of every source, split into training and held-out files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.train.corpus.archives import members
from tools.train.corpus.clean import MIN_CHARACTERS, Deduplicator, clean, is_vendored
from tools.train.corpus.sources import Source

from thalweg.interfaces import ConfigError

HELD_OUT_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Document:
    """One cleaned file."""

    source: str
    """Work and part."""
    path: str
    """In the archive."""
    text: str

    @property
    def num_bytes(self) -> int:
        """Of the text as UTF-8."""
        return len(self.text.encode())

    @property
    def rank(self) -> bytes:
        """A hash of the name: the order in which documents of a source are held out."""
        return hashlib.blake2b(f"{self.source}: {self.path}".encode(), digest_size=8).digest()


def read_source(source: Source, archives: Path, deduplicator: Deduplicator) -> Iterator[Document]:
    """The documents of a source, in the order of their paths. Raises ConfigError when it was not fetched."""
    files = ((path, content) for path, content in members(archives / source.archive) if source.is_text(path))
    for path, content in sorted(files):
        text = None if is_vendored(path) else clean(content)
        text = text and deduplicator.unique(text)
        if text and len(text) >= MIN_CHARACTERS:
            yield Document(source.label, path, text)


def split(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents of one source, each in the order of the source.

    Whole files are held out, in the order of their hashes, until they have the share of the bytes: no source is missing
    from what is measured.
    """
    missing = HELD_OUT_SHARE * sum(document.num_bytes for document in documents)
    held_out: set[str] = set()
    for document in sorted(documents, key=lambda document: document.rank):
        if missing <= 0:
            break
        held_out.add(document.path)
        missing -= document.num_bytes
    return (
        [document for document in documents if document.path not in held_out],
        [document for document in documents if document.path in held_out],
    )


def write(documents: Iterable[Document], path: Path) -> None:
    """Write JSON lines, all of them or none."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(document)) + "\n" for document in documents)
    partial.rename(path)


def read(path: Path) -> list[Document]:
    """Read JSON lines. Raises ConfigError when the text was not cleaned yet."""
    if not path.is_file():
        raise ConfigError(f"{path}: does not exist; run the stage `clean` first")
    with path.open(encoding="utf-8") as lines:
        return [Document(**json.loads(line)) for line in lines]
