"""Where something stands: $.properties.age.minimum. Made of links, so that long keys cost only when they are shown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_LONGEST_KEY = 60
_LONGEST_PATH = 12
_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Path:
    """A place in a document: the root, which may have a name, or a member of another place."""

    parent: Path | None = None
    key: str | int | None = None

    def __truediv__(self, key: str | int) -> Path:
        return Path(self, key)

    def __str__(self) -> str:
        steps: list[str] = []
        place = self
        while place.parent is not None:
            steps.append(_step(place.key))
            place = place.parent
        steps.reverse()
        if len(steps) > _LONGEST_PATH:
            half = _LONGEST_PATH // 2
            steps[half:-half] = ["..."]
        return str(place.key or "$") + "".join(steps)


ROOT = Path()


def _step(key: str | int | None) -> str:
    if not isinstance(key, str):
        return f"[{key}]"
    if len(key) > _LONGEST_KEY:
        key = key[:_LONGEST_KEY] + "..."
    return f".{key}" if _PLAIN.fullmatch(key) else f"[{json.dumps(key, ensure_ascii=False)}]"
