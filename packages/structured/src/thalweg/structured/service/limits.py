"""What a compile service may spend."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.interfaces import ConfigError, shown

MIB = 1 << 20
_LARGEST = 1 << 62
"""A limit of the system is the sum of one of these and what a process has already, in 64 bits."""
_LONGEST_S = 86_400
"""Waiting and limits of processes have largest values of their own."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of one service. Raises ConfigError naming field, value and what is accepted."""

    num_workers: int = 2
    """Processes that compile, and threads of this process that finish what they compiled."""
    timeout_s: float = 20.0
    """From submission to result, waiting included, but not for the start of the service; and of one compilation."""
    ship_after_s: float = 2.0
    """Processor seconds from which a grammar is sent here by the worker instead of being compiled once more."""
    cache_bytes: int = 512 * MIB
    """Of compiled grammars that are kept; 0 keeps none."""
    max_pending_per_user: int = 64
    """Grammars of one user that wait for a worker; equal ones count once."""
    max_source_bytes: int = 256 * 1024
    """Of one specification, in UTF-8."""
    memory_bytes: int = 4096 * MIB
    """Address space of a worker beyond what it has at its beginning."""
    max_rollback: int | None = None
    """Tokens that matchers with a trigger can take back; None: as many as `GrammarMatcher` says."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_workers", 1, 256),
            ("cache_bytes", 0, _LARGEST),
            ("max_pending_per_user", 1, _LARGEST),
            ("max_source_bytes", 1, _LARGEST),
            ("memory_bytes", 64 * MIB, _LARGEST),
            ("max_rollback", 1, _LARGEST),
        ):
            value = getattr(self, name)
            if name == "max_rollback" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(
                    f"{name} is {shown(value)}; it must be an integer of at least {least} and at most {most}"
                )
        for name, is_positive in (("timeout_s", True), ("ship_after_s", False)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _LONGEST_S or (is_positive and value == 0):
                accepted = "above 0" if is_positive else "of at least 0"
                raise ConfigError(
                    f"{name} is {shown(value)}; it must be a finite number {accepted} and at most {_LONGEST_S}"
                )
