"""Records of a drafter whose miscalibration is known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark import ConfidenceRecorder, ConfidenceRecords

TRUE_TEMPERATURES = (1.3, 1.7, 0.8, 1.0, 0.6)


def synthetic_records(
    num_rows: int, temperatures: Sequence[float] = TRUE_TEMPERATURES, seed: int = 0
) -> ConfidenceRecords:
    """Rows of a drafter whose logits are `temperatures` times too large: dividing by them makes it calibrated.

    Requests differ (Beta(3.15, 1.35), mean 0.7) and so do the drafts of one.
    """
    random = np.random.default_rng(seed)
    shape = (num_rows, len(temperatures))
    rate = random.beta(3.15, 1.35, size=(num_rows, 1))
    logits = np.log(rate / (1 - rate)) + random.normal(0, 0.7, size=shape)
    holds = random.random(shape) < sigmoid(logits)
    num_accepted = np.cumprod(holds, axis=1).sum(axis=1)
    return ConfidenceRecords(sigmoid(logits * np.array(temperatures)), num_accepted)


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-logits))


def write_records(path: Path, records: ConfidenceRecords) -> Path:
    with ConfidenceRecorder(path, records.draft_length) as recorder:
        recorder.add(records.confidences.astype(np.float32), records.num_verified, records.num_accepted)
    return path
