"""A schedule that follows the clock: how far training is, and the learning rate there.

The planned time is training time. The clock stands during start-up, compilation and evaluation, so a run that is cut
into several invocations goes through the same schedule as one that is not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from thalweg.interfaces import ConfigError


class Clock:
    """Training time over all invocations, as a share of what is planned."""

    def __init__(self, planned_s: float, elapsed_s: float = 0.0) -> None:
        """elapsed_s: training time of earlier invocations. The clock stands until `resume`."""
        if not planned_s > 0:
            raise ConfigError(f"planned_s is {planned_s}; it must be above 0")
        self._planned_s = planned_s
        self._before_s = elapsed_s
        self._since: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Training time until now."""
        return self._before_s + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def progress(self) -> float:
        """Share of the planned time, at most 1."""
        return min(self.elapsed_s / self._planned_s, 1.0)

    def resume(self) -> None:
        """Let the clock run."""
        if self._since is None:
            self._since = time.monotonic()

    def pause(self) -> None:
        """Stop the clock."""
        self._before_s, self._since = self.elapsed_s, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Work that is no training."""
        self.pause()
        try:
            yield
        finally:
            self.resume()


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Warm-up by steps, then constant, then linear in time to a small rest."""

    warmup_steps: int = 150
    restart_steps: int = 40
    """Warm-up after a resume point, whose moments start from zero."""
    constant_until: float = 0.5
    """Share of the planned time at which the decay begins."""
    final: float = 0.02

    def rate(self, progress: float, steps: int, steps_since_start: int) -> float:
        """Multiplier of the learning rates; steps: of all invocations, steps_since_start: of this one."""
        warm = min((steps + 1) / self.warmup_steps, (steps_since_start + 1) / self.restart_steps, 1.0)
        decayed = max(progress - self.constant_until, 0.0) / (1 - self.constant_until)
        return warm * (1 - decayed * (1 - self.final))
