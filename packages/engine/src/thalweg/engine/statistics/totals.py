"""Sums over the steps of an engine."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thalweg.engine.statistics.record import StepRecord
from thalweg.interfaces import StepKind


@dataclass(slots=True)
class StepTotals:
    """Sums over the steps of an engine since it started; seconds are wall clock."""

    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    num_idle_steps: int = 0
    num_prompt_tokens: int = 0
    """Query tokens of prefill steps, recomputed ones included."""
    num_output_tokens: int = 0
    forward_s: float = 0.0
    """Inside the model: forward pass and logits."""
    step_s: float = 0.0
    """Whole steps, forward included; where steps overlap, a moment counts once."""
    num_finished: int = 0
    """Sequences that ran and left, however they ended."""
    num_illegal_drafts: int = 0
    """Draft ids outside the vocabulary, or in the place of what the sampler drew; others stood in for them."""
    num_bad_confidences: int = 0
    """Confidences outside 0..1, or not numbers; each counted as 0."""
    mask_s: float = 0.0
    """Of the host, filling the masks of grammars."""

    def add(self, record: StepRecord) -> None:
        """Count one step."""
        plan = record.plan
        if not plan.sequence_ids.size:
            self.num_idle_steps += 1
        elif plan.kind is StepKind.PREFILL:
            self.num_prefill_steps += 1
            self.num_prompt_tokens += int(plan.query_lengths.sum())
        else:
            self.num_decode_steps += 1
        self.num_output_tokens += record.num_output_tokens
        self.forward_s += record.forward_ms / 1000
        self.mask_s += record.mask_ms / 1000
        self.step_s += record.step_ms / 1000
        self.num_finished += plan.stats.num_finished
        self.num_illegal_drafts += record.draft_faults[0]
        self.num_bad_confidences += record.draft_faults[1]

    def minus(self, earlier: StepTotals) -> StepTotals:
        """What happened since an earlier copy."""
        return StepTotals(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(StepTotals)))

    def copy(self) -> StepTotals:
        return self.minus(StepTotals())

    @property
    def share_outside_forward(self) -> float:
        """Part of the step time that is not the model's; 0 before the first step."""
        return 1.0 - self.forward_s / self.step_s if self.step_s else 0.0
