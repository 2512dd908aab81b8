"""Which round's confidences decide what a decode step verifies.

Whether a draft is verified may not depend on its token, and the confidences of later drafts do depend on it. So how
many drafts a step verifies comes from the round before the last, whose tokens are history; and whose drafts they are
comes from the last round, where survival never increases: a later draft never overtakes an earlier one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import InvariantError

Survival = NDArray[np.float32]
"""[number of drafts] probability that a draft and all before it are accepted."""


def running_product(confidences: NDArray[np.float32]) -> Survival:
    """Survival of each draft from the confidences of one round, [G] each; float32 throughout, in order."""
    return np.multiply.accumulate(confidences, dtype=np.float32)


def survival_for_step(
    *,
    num_drafts: int,
    has_draft_info: bool,
    schedule_count: int,
    process_count: int,
    rates: Survival | None,
    prev_rates: Survival | None,
) -> tuple[Survival, Survival]:
    """Survival of one sequence's drafts, for the budget and for the split of the step now being planned.

    rates, prev_rates: [num_drafts] survival of the last processed round and of the one before it; None or empty where
    unknown. The counts are those before this step is counted. Raises InvariantError for counts that do not go together
    and for rates of another length.
    """
    is_in_flight = schedule_count == process_count + 1
    if not is_in_flight and schedule_count != process_count:
        raise InvariantError(
            f"schedule_count is {schedule_count} and process_count is {process_count}; "
            "at most one step may be unprocessed"
        )
    # With a step in flight the last processed round is the one before the last; the device redoes the split.
    for_budget = rates if is_in_flight else prev_rates
    certain = 1.0 if has_draft_info or is_in_flight else 0.0
    return _known_or(certain, for_budget, num_drafts), _known_or(certain, rates, num_drafts)


def _known_or(value: float, rates: Survival | None, num_drafts: int) -> Survival:
    if rates is None or len(rates) == 0:
        return np.full(num_drafts, value, np.float32)
    if len(rates) != num_drafts:
        raise InvariantError(f"survival of {len(rates)} drafts is known; the sequence has {num_drafts}")
    return rates
