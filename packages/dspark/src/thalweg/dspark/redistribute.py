"""The split of an asynchronous step, redone from confidences that the host had not seen when it planned."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import require_array


def redistribute(total: int, previous_rows: NDArray[np.int32], confidences: NDArray[np.float32]) -> NDArray[np.int32]:
    """Query lengths, int32 [N], that share out `total` query tokens by survival.

    previous_rows: int32 [N], row of each sequence in the previous step, -1 for a fresh one (survival 0).
    confidences: float32 [N_prev, G], of the previous step's new drafts. Every row keeps its anchor; the rest goes to
    the likeliest drafts, of equals to the lower row. Raises ValueError for other arrays, unless N <= total <= N *
    (1 + G), for a row beyond the previous step and for a confidence that is no probability.
    """
    require_array("previous_rows", previous_rows, np.int32, num_dimensions=1)
    require_array("confidences", confidences, np.float32, num_dimensions=2)
    num_rows = len(previous_rows)
    draft_length = confidences.shape[1]
    if not num_rows <= total <= num_rows * (1 + draft_length):
        raise ValueError(
            f"total is {total}; {num_rows} rows of up to {draft_length} drafts share "
            f"{num_rows} to {num_rows * (1 + draft_length)}"
        )
    _check_values(previous_rows, confidences)
    survival = np.zeros((num_rows, draft_length), np.float32)
    is_known = previous_rows >= 0
    survival[is_known] = np.multiply.accumulate(confidences[previous_rows[is_known]], axis=1, dtype=np.float32)
    winners = np.argsort(-survival.ravel(), kind="stable")[: total - num_rows]
    return 1 + np.bincount(winners // draft_length, minlength=num_rows).astype(np.int32)


def _check_values(previous_rows: NDArray[np.int32], confidences: NDArray[np.float32]) -> None:
    num_previous = len(confidences)
    is_wrong = (previous_rows < -1) | (previous_rows >= num_previous)
    if is_wrong.any():
        i = int(is_wrong.argmax())
        raise ValueError(f"previous_rows[{i}] is {previous_rows[i]}; it must be from -1 to {num_previous - 1}")
    # Written so that a NaN fails.
    is_outside = ~((confidences >= 0) & (confidences <= 1))
    if is_outside.any():
        row, draft = np.argwhere(is_outside)[0]
        raise ValueError(f"confidences[{row}][{draft}] is {confidences[row, draft]}; it must be from 0 to 1")
