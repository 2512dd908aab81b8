"""The temperatures that confidence logits are divided by, one per draft position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thalweg.dspark._checks import require_draft_length
from thalweg.interfaces import ConfigError, shown

MIN_TEMPERATURE = 1e-5
"""A smaller one counts as this."""


def parse_temperatures(value: str | float | Sequence[float], draft_length: int) -> tuple[float, ...]:
    """One temperature for each of draft_length positions.

    value: one number for all positions or exactly draft_length of them, as numbers or as text separated by commas;
    nothing at all means 1. Raises ConfigError for another count and for what is not a finite number above 0.
    """
    require_draft_length(draft_length)
    entries = _entries(value)
    if len(entries) not in (0, 1, draft_length):
        raise ConfigError(f"there are {len(entries)} temperatures; 1 or {draft_length}, one per draft, are needed")
    temperatures = [_temperature(i, entry) for i, entry in enumerate(entries)] or [1.0]
    return tuple(temperatures * draft_length if len(temperatures) == 1 else temperatures)


def _entries(value: Any) -> list[Any]:
    if isinstance(value, str):
        return value.split(",") if value.strip() else []
    if isinstance(value, bytes | dict) or not hasattr(value, "__iter__"):
        return [value]
    return list(value)


def _temperature(i: int, entry: Any) -> float:
    try:
        temperature = math.nan if isinstance(entry, bool | bytes) else float(entry)
    except (TypeError, ValueError, OverflowError):
        temperature = math.nan
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"temperatures[{i}] is {shown(entry)}; a finite number above 0 is needed")
    return max(temperature, MIN_TEMPERATURE)
