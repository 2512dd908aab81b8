"""Refusing a result whose arrays do not fit its step, before anything changes."""

from __future__ import annotations

import numpy as np

from thalweg.interfaces import StepResult
from thalweg.scheduler.reference.step import PlannedStep


def check_result(result: StepResult, planned: PlannedStep, draft_length: int) -> None:
    """Raise ValueError unless the arrays have the shapes, dtypes and ranges that this step's rows need."""
    num_rows = len(planned.rows)
    width = 0 if planned.is_prefill else draft_length
    _require("sampled_token_ids", result.sampled_token_ids, np.int32, (num_rows,))
    _require("accepted_token_ids", result.accepted_token_ids, np.int32, (num_rows, width))
    _require("draft_token_ids", result.draft_token_ids, np.int32, (num_rows, width))
    _require("confidences", result.confidences, np.float32, (num_rows, width), (num_rows, 0))
    if not np.all((result.confidences >= 0) & (result.confidences <= 1)):
        raise ValueError("confidences hold a value that is not a number from 0 to 1")
    if result.row_status is not None:
        _require("row_status", result.row_status, np.int8, (num_rows,))


def _require(name: str, array: object, dtype: type[np.generic], *shapes: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape not in shapes:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        wanted = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ValueError(f"{name} is {found}; this step needs {np.dtype(dtype)} {wanted}")
