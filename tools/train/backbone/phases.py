"""The phases of training: what layers attend to, what indexers learn from, and how long windows are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tools.train.backbone.memory import PassShape
from tools.train.common.schedule import RateSchedule


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the schedule."""

    name: str
    until: float
    """Share of the planned time at which it ends."""
    shapes: tuple[PassShape, ...]
    """Passes, one per step, in turn."""
    is_quantised: bool = False
    """Whether weights are those that the checkpoint formats can store."""
    is_averaged: bool = False
    """Whether the result is the mean of the masters over the steps of this phase."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All phases in order, and how fast to learn."""

    phases: tuple[Phase, ...]
    rates: RateSchedule

    def at(self, progress: float) -> Phase:
        """The phase at a share of the planned time."""
        return next((phase for phase in self.phases if progress < phase.until), self.phases[-1])

    def shapes(self, progress: float = 0.0) -> list[PassShape]:
        """Every different pass from a share of the planned time on, in order of first use."""
        later = [phase for phase in self.phases if phase.until > progress] or [self.phases[-1]]
        return list(dict.fromkeys(shape for phase in later for shape in phase.shapes))


def small_plan() -> Plan:
    """65,536 tokens a step. The last fifth goes in turn to windows of 1,024 and of 8,192 tokens."""
    dense = PassShape(64, 1024)
    sparse = PassShape(64, 1024, is_sparse=True, study_blocks=4)
    long = PassShape(8, 8192, is_sparse=True, study_blocks=8)
    return _plan(dense, sparse, long, RateSchedule())


def toy_plan() -> Plan:
    """The same phases in a size that a CPU trains in seconds."""
    dense = PassShape(2, 128, dense_entries=64)
    sparse = replace(dense, is_sparse=True, study_blocks=2)
    long = replace(sparse, batch=1, length=256)
    return _plan(dense, sparse, long, RateSchedule(warmup_steps=6, restart_steps=2))


def _plan(dense: PassShape, sparse: PassShape, long: PassShape, rates: RateSchedule) -> Plan:
    return Plan(
        (
            Phase("dense", 0.03, (dense,)),
            Phase("dense, indexers learn", 0.12, (replace(dense, study_blocks=sparse.study_blocks),)),
            Phase("selected", 0.78, (sparse,)),
            Phase("selected, long", 0.80, (sparse, long)),
            Phase("quantised, long", 0.95, (sparse, long), is_quantised=True),
            Phase("quantised, long, averaged", 1.0, (sparse, long), is_quantised=True, is_averaged=True),
        ),
        rates,
    )
