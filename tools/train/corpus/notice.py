"""Collects the licence texts of the works into the NOTICE that goes with the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.train.corpus.archives import members
from tools.train.corpus.sources import Source, matches

from thalweg.interfaces import ConfigError

HEAD = """\
The weights and the tokenizer were trained by the project on text of the following works, under their licences.
None of their text is part of this package. Folders of other works inside them were left out.
"""
RULE = "=" * 80


def notice(sources: Sequence[Source], archives: Path) -> str:
    """Names, versions and licences of all works, then every licence text once.

    Raises ConfigError when a pattern of the list finds no licence text, or the line where one ends is missing.
    """
    rows = [(f"{source.name} {source.version}", source.part, source.licence) for source in sources]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = "\n".join(f"{work:{widths[0]}}  {part:{widths[1]}}  {licence}" for work, part, licence in rows)
    sections = [section for source in sources if source.licences for section in _sections(source, archives)]
    return "\n".join([HEAD, table, "", *sections])


def _sections(source: Source, archives: Path) -> list[str]:
    """The licence texts of an archive, each under its path."""
    found = {path: content.decode() for path, content in members(archives / source.archive) if source.is_licence(path)}
    for pattern in source.licences:
        if not any(matches(path, [pattern]) for path in found):
            raise ConfigError(f"{source.archive}: has no licence text {pattern}")
    end = source.licence_ends
    if end is not None:
        if not any(end in text for text in found.values()):
            raise ConfigError(f"{source.archive}: no licence text has the line {end!r}")
        found = {path: text.partition(end)[0].rstrip("\n-") for path, text in found.items()}
    work = f"{source.name} {source.version}"
    return [f"{RULE}\n{work}: {path}\n{RULE}\n\n{found[path].strip()}\n" for path in sorted(found)]
