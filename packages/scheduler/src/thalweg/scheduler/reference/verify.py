"""How many tokens each row of a decode step verifies."""

from __future__ import annotations

from thalweg.scheduler.reference.sequence import Confidences, Sequence
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.survival import Survival, running_product, survival_for_step


def verify_lengths(state: State, sequences: list[Sequence]) -> list[int]:
    """Query length of each row, in row order: all drafts, or as many as are worth their time."""
    if not state.has_curve or state.verify_budget is None or not sequences:
        return [1 + sequence.num_drafts for sequence in sequences]
    pairs = [_survival(sequence) for sequence in sequences]
    lengths = state.verify_budget.verify_lengths([budget for budget, _ in pairs], [split for _, split in pairs])
    chosen: list[int] = lengths.tolist()
    return chosen


def _survival(sequence: Sequence) -> tuple[Survival, Survival]:
    return survival_for_step(
        num_drafts=sequence.num_drafts,
        has_draft_info=sequence.has_draft_info,
        schedule_count=sequence.schedule_count,
        process_count=sequence.process_count,
        rates=_rates(sequence.confidences),
        prev_rates=_rates(sequence.previous_confidences),
    )


def _rates(confidences: Confidences) -> Survival | None:
    return None if confidences is None else running_product(confidences)
