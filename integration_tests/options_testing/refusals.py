"""The cells that refuse: what is raised, before anything is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from thalweg.engine import EngineConfig
from thalweg.interfaces import ConfigError


@dataclass(frozen=True)
class Refusal:
    """How to ask for what is refused, and what the error says."""

    ask: Callable[[str], None]
    """By mode."""
    message: str
    """A regular expression."""


def ask_for_invariance(mode_name: str) -> None:
    EngineConfig.build(
        environ={}, batch_invariant=True, verification="rejection", variable_length=mode_name == "variable length"
    )


REFUSALS: dict[tuple[str, str], Refusal] = {
    ("batch_invariant, rejection", "variable length"): Refusal(
        ask_for_invariance,
        "^batch_invariant is True with variable_length True and verification 'rejection'; .* "
        "give verification 'coupled', or variable_length False$",
    ),
}
"""By cell."""


def check_refused(option: str, mode_name: str) -> None:
    refusal = REFUSALS[option, mode_name]
    with pytest.raises(ConfigError, match=refusal.message):
        refusal.ask(mode_name)
