"""The section of the engine configuration about grammars: what compiling them may take, and who fills masks."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.engine.sections import is_int, is_number
from thalweg.interfaces import ConfigError, shown

_LONGEST_TIMEOUT_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredConfig:
    """Structured output. Raises ConfigError naming the option."""

    workers: int = 2
    """Processes that compile grammars. They start with the first request that has one."""
    timeout_s: float = 20.0
    """A grammar that is not compiled so many seconds after its request came fails that request."""
    cache_bytes: int = 512 << 20
    """Memory for compiled grammars that are kept for later requests; 0 keeps none."""
    max_pending_per_user: int = 64
    """Grammars of one user that may wait for a worker; a request beyond them is refused."""
    mask_threads: int = 1
    """Threads that fill the masks of a step."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("workers", 1, 256),
            ("cache_bytes", 0, 2**63 - 1),
            ("max_pending_per_user", 1, 2**31 - 1),
            ("mask_threads", 1, 256),
        ):
            value = getattr(self, name)
            if not is_int(value) or not least <= value <= most:
                raise ConfigError(f"structured_{name} is {shown(value)}; it must be an integer from {least} to {most}")
        timeout = self.timeout_s
        if not (is_number(timeout) and 0 < timeout <= _LONGEST_TIMEOUT_S):
            raise ConfigError(
                f"structured_timeout_s is {shown(timeout)}; it must be above 0 and at most {_LONGEST_TIMEOUT_S}"
            )
