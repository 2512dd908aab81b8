"""When a step is counted, and when experts are rearranged."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.eplb._checks import require_integer
from thalweg.interfaces import ConfigError, StepKind, shown


@dataclass(frozen=True, slots=True)
class StepActions:
    """What to do at the end of a step, in this order."""

    records: bool
    """Its counts go into the window."""
    rearranges: bool
    """A rearrangement starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How often experts are rearranged.

    A mixed engine prefills and decodes; there prefill steps are neither recorded nor counted, because their loads say
    little about decode steps. Raises ConfigError for values that are none, and options that would do nothing.
    """

    interval: int = 0
    """Steps between rearrangements; 0 is never."""
    window: int = 100
    """Steps of the counting window; at most the interval, since older steps have been planned on before."""
    is_mixed: bool = True
    after_prefill: bool = False
    """In a mixed engine a prefill step is recorded, and the next decode step rearranges."""

    def __post_init__(self) -> None:
        for name in ("interval", "window"):
            require_integer(name, getattr(self, name), 0)
        for name in ("is_mixed", "after_prefill"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(f"{name} is {shown(value)}; it must be True or False")
        if self.after_prefill and not self.is_mixed:
            raise ConfigError(
                "after_prefill is True; it must be False unless is_mixed, since all prefill steps count then"
            )
        if self.interval and not 1 <= self.window <= self.interval:
            raise ConfigError(f"window is {self.window}; with interval {self.interval} it must be 1..{self.interval}")


class RearrangementSchedule:
    """Counts steps. All ranks see the same kinds of step, so all of them rearrange in the same one.

    The first rearrangement comes after a quarter of the interval: the initial placement is the worst there is.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self._config = config
        self._counted = config.interval - max(1, config.interval // 4)

    def observe(self, kind: StepKind) -> StepActions:
        """What to do at the end of this step."""
        config = self._config
        if kind == StepKind.PREFILL and config.is_mixed:
            if config.after_prefill:
                self._counted = config.interval - 1
            return StepActions(records=config.after_prefill, rearranges=False)
        self._counted += 1
        rearranges = config.interval > 0 and self._counted == config.interval
        if rearranges:
            self._counted = 0
        return StepActions(records=True, rearranges=rearranges)
