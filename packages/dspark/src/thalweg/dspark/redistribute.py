"""The split of an asynchronous step, redone from confidences that the host had not seen when it planned."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def redistribute(total: int, previous_rows: NDArray[np.int32], confidences: NDArray[np.float32]) -> NDArray[np.int32]:
    """Query lengths, int32 [N], that share out `total` query tokens by survival.

    previous_rows: int32 [N], row of each sequence in the previous step, -1 for a fresh one (survival 0).
    confidences: float32 [N_prev, G], of the previous step's new drafts. Every row keeps its anchor; the rest goes to
    the likeliest drafts, of equals to the lower row. Raises ValueError unless N <= total <= N * (1 + G), for a row
    beyond the previous step and for a confidence that is no probability.
    """
    num_rows = len(previous_rows)
    num_previous, draft_length = confidences.shape
    if not num_rows <= total <= num_rows * (1 + draft_length):
        raise ValueError(
            f"total is {total}; {num_rows} rows of up to {draft_length} drafts share "
            f"{num_rows} to {num_rows * (1 + draft_length)}"
        )
    if num_rows and not (previous_rows.min() >= -1 and previous_rows.max() < num_previous):
        raise ValueError(
            f"previous_rows go from {previous_rows.min()} to {previous_rows.max()}; "
            f"-1 to {num_previous - 1} are rows of the previous step"
        )
    if not ((confidences >= 0) & (confidences <= 1)).all():
        raise ValueError("confidences holds a number outside 0..1, or none")
    survival = np.zeros((num_rows, draft_length), np.float32)
    is_known = previous_rows >= 0
    survival[is_known] = np.multiply.accumulate(confidences[previous_rows[is_known]], axis=1, dtype=np.float32)
    winners = np.argsort(-survival.ravel(), kind="stable")[: total - num_rows]
    return 1 + np.bincount(winners // draft_length, minlength=num_rows).astype(np.int32)
