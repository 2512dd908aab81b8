"""Typed environment variables that fill defaults of the deployment configuration.

A package declares its variables once and reads them while its configuration is built; nothing is bound at import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from thalweg.interfaces.checks import shown
from thalweg.interfaces.errors import ConfigError

T = TypeVar("T")

PREFIX = "THALWEG_"


def parse_bool(text: str) -> bool:
    """1/true/yes/on and 0/false/no/off, in any case. Raises ValueError for anything else."""
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected 1/true/yes/on or 0/false/no/off")


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One `THALWEG_*` variable."""

    name: str
    """Without the prefix."""
    parse: Callable[[str], T]
    description: str

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    def read(self, environ: Mapping[str, str] | None = None) -> T | None:
        """The parsed value, or None when unset. Raises ConfigError naming the variable for a bad value."""
        text = (os.environ if environ is None else environ).get(self.full_name)
        if text is None:
            return None
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigError(f"{self.full_name} is {shown(text)}: {error}") from error
