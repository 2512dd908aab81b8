"""What the engine tells the statistics about one step."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.interfaces import StepOutcome, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step; handed over after it was post-processed, in plan order. Times are in milliseconds."""

    plan: StepPlan
    outcome: StepOutcome
    forward_ms: float
    """Inside the model: forward pass and logits; 0 for a plan without rows."""
    sampler_ms: float
    """Drawing, verifying and drafting."""
    step_ms: float
    """Wall clock from the end of the step before, or from the start of this one if that was later, to its end. So the
    sum over steps is the time that the engine was busy, whether steps overlap or not."""
    first_token_ms: tuple[float, ...] = ()
    """Time to first token of the requests that got theirs in this step."""
    moe_load: tuple[float, float] | None = None
    """(mean, maximum) tokens per rank of the experts, summed over layers; None while nobody measures it."""
    confidence_error: float | None = None
    """How far the drafter's confidences are from what was accepted; None while nobody measures it."""
