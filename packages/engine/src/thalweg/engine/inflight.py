"""A step between its plan and its outputs, and the contract of what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from thalweg.engine.requests import SamplingRow
from thalweg.engine.sampler import Sampled
from thalweg.interfaces import StepPlan


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a runner made of a plan."""

    sampled: Sampled
    forward_s: float
    """Wall clock inside the model."""


class Runner(Protocol):
    """Runs the model on the rows of a plan and samples."""

    def run(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> Forwarded:
        """Copy and clear cache memory as the plan says, then forward and sample. `sampling`: one entry per row."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class InflightStep:
    """A launched step. Without asynchronous scheduling it lives and ends inside one call of `LLMEngine.step`."""

    plan: StepPlan
    forwarded: Forwarded
    started_s: float
