"""What the engine tells the statistics about one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    mask_ms: float = 0.0
    """Of the host, filling the masks of grammars while the model runs; 0 for a step without grammars."""
    step_ms: float
    """Wall clock from the end of the step before, or from the start of this one if that was later, to its end. So the
    sum over steps is the time that the engine was busy, whether steps overlap or not."""
    first_token_ms: tuple[float, ...] = ()
    """Time to first token of the requests that got theirs in this step."""
    num_output_tokens: int
    """Tokens that the step added to outputs. The outcome may have more of them: of requests that were over by then, or
    after a stop that the scheduler does not know; and fewer, where a prompt has several outputs."""
    moe_load: tuple[float, float] | None = None
    """(mean, maximum) tokens per rank of the experts, summed over layers; None while nobody measures it."""
    accept_probs: NDArray[np.float32] | None = None
    """[N, G] how likely each draft of the step was to be accepted, NaN where none was verified; None = no drafts."""
    draft_faults: tuple[int, int] = (0, 0)
    """What the drafter got wrong in this step: unusable ids, confidences outside 0..1."""

    @property
    def confidence_errors(self) -> NDArray[np.float64]:
        """[n] how far the drafter's confidence was off, of the verified drafts of which it is known."""
        if self.accept_probs is None:
            return np.zeros(0)
        errors = np.abs(self.accept_probs.astype(np.float64) - self.outcome.verified_confidences)
        known: NDArray[np.float64] = errors[~np.isnan(errors)]
        return known
