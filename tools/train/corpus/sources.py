"""The pinned list of works that the training text is taken from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from thalweg.interfaces import ConfigError

LIST = Path(__file__).parent / "sources.toml"
REGISTRIES = ("debian", "wheel", "sdist")


@dataclass(frozen=True, slots=True)
class Source:
    """One archive of a registry, and which of its files are used."""

    name: str
    part: str
    version: str
    licence: str
    registry: str
    package: str
    """What the registry's client is asked for: name and version."""
    archive: str
    """File name that the client gives it."""
    sha256: str
    texts: tuple[str, ...]
    """Patterns of the paths that are training text."""
    excluded: tuple[str, ...] = ()
    """Patterns of paths that are not, although a pattern of `texts` fits."""
    licences: tuple[str, ...] = ()
    """Patterns of the paths of licence texts; empty where another part of the work has them."""
    licence_ends: str | None = None
    """The line at which notices about bundled binary libraries begin."""
    training_only: bool = False
    """No file of it is held out and the tokenizer is not trained on it, so that adding it changes neither."""

    @property
    def label(self) -> str:
        """Work and part: what its documents are named after."""
        return f"{self.name} {self.part}"

    def is_text(self, path: str) -> bool:
        """Whether a file of the archive is training text."""
        return matches(path, self.texts) and not matches(path, self.excluded)

    def is_licence(self, path: str) -> bool:
        """Whether a file of the archive is a licence text that the text is used under."""
        return matches(path, self.licences)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path fits any of the patterns, in which * also matches /."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def read_sources(path: Path = LIST) -> tuple[Source, ...]:
    """The list, in its order. Raises ConfigError that names the entry and the key at fault."""
    entries = tomllib.loads(path.read_text())["source"]
    sources = tuple(_source(entry, f"{path.name}: source {number}") for number, entry in enumerate(entries, 1))
    licensed = {source.name for source in sources if source.licences}
    for source in sources:
        if source.name not in licensed:
            raise ConfigError(f"{path.name}: no entry of {source.name} has `licences`; at least one must")
    return sources


def _source(entry: dict[str, str | bool | list[str]], where: str) -> Source:
    known = {field.name for field in fields(Source)}
    if unknown := sorted(set(entry) - known):
        raise ConfigError(f"{where}: unknown key {unknown[0]}; known are {', '.join(sorted(known))}")
    needed = {field.name for field in fields(Source) if field.default is MISSING}
    if missing := sorted(needed - set(entry)):
        raise ConfigError(f"{where}: {missing[0]} is missing")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    source = Source(**values)
    if source.registry not in REGISTRIES:
        raise ConfigError(f"{where}: registry is {source.registry}; accepted are {', '.join(REGISTRIES)}")
    return source
