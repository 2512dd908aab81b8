"""Figures with what they are about, as a table to read and as a file to keep."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    measure: str
    name: str
    value: float
    unit: str
    over: str
    """The set it was measured on, with its size."""
    least: float | None = None
    """What it has to reach, where something was promised."""
    most: float | None = None
    """What it must not exceed."""

    @property
    def verdict(self) -> str:
        """Whether it keeps its bound; empty where there is none."""
        if self.least is None and self.most is None:
            return ""
        kept = (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        return f"{'kept' if kept else 'MISSED'}: {bound}"


class Report:
    """Prints figures as they come and remembers them."""

    def __init__(self) -> None:
        self._figures: list[Figure] = []
        self._kept: dict[str, Any] = {}

    def add(self, figures: Iterable[Figure]) -> None:
        """Print and keep some figures; a heading says what they are about."""
        heading = ""
        for figure in figures:
            if (told := f"{figure.measure}, over {figure.over}") != heading:
                heading = told
                print(f"\n{heading}")
            print(f"  {figure.name:<58} {figure.value:>10.4f} {figure.unit:<14} {figure.verdict}", flush=True)
            self._figures.append(figure)

    def keep(self, name: str, content: Any) -> None:
        """Keep something that is no figure, such as texts, under a name of its own."""
        self._kept[name] = content

    def write(self, file: Path, **about: str) -> None:
        """Everything as JSON, with what was evaluated and where."""
        document = {
            "about": about | {"torch": torch.__version__, "python": platform.python_version(), "command": sys.argv[1:]},
            "figures": [asdict(figure) for figure in self._figures],
            **self._kept,
        }
        file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
