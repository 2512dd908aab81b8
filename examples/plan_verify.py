"""Would variable verification pay for a drafter? Calibrate its confidences and plan with them. Needs numpy, not torch.

Install with `pip install thalweg-dspark`. The drafter here is made up: its requests differ, and its confidences promise
too much. Records of a real one come from `ConfidenceRecorder`, or from any engine that writes the same lines.
"""

import tempfile
from pathlib import Path

import numpy as np

from thalweg.dspark import (
    ConfidenceRecorder,
    StepTimeCurve,
    calibrate,
    graph_sizes,
    plan,
    read_records,
    workload_of_records,
)

NUM_ROWS, DRAFT_LENGTH = 5000, 5


def record(path: Path) -> None:
    """What an engine does while it serves: one line for each row that verified drafts."""
    random = np.random.default_rng(0)
    chances = random.beta(3.15, 1.35, size=(NUM_ROWS, 1))  # of each request: 0.7 on average
    holds = random.random((NUM_ROWS, DRAFT_LENGTH)) < chances
    num_accepted = np.cumprod(holds, axis=1).sum(axis=1)
    odds = np.repeat((chances / (1 - chances)) ** 2, DRAFT_LENGTH, axis=1)  # a temperature of 2 would undo the square
    with ConfidenceRecorder(path, DRAFT_LENGTH) as recorder:
        recorder.add((odds / (1 + odds)).astype(np.float32), np.full(NUM_ROWS, DRAFT_LENGTH), num_accepted)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        record(path)
        records = read_records(path)
    temperatures = calibrate(records).temperatures
    print("temperatures", " ".join(f"{temperature:.2f}" for temperature in temperatures))

    measured = StepTimeCurve([(32, 9.99), (96, 10.8), (192, 11.8), (360, 14.4), (576, 18.8)])  # query tokens, ms
    curve = measured.interpolated(graph_sizes(measured.largest))
    for name, used in (("raw", (1.0,) * DRAFT_LENGTH), ("calibrated", temperatures)):
        for row in plan(curve, workload_of_records(records, used), [16, 60, 96]):
            print(
                f"{name:10} {row.num_sequences:3} sequences: {row.fixed.tokens_per_s:6.0f} tokens/s fixed, "
                f"{row.variable.tokens_per_s:6.0f} variable ({row.gain:+.1%}), "
                f"{row.variable.verified_drafts:.2f} drafts"
            )


if __name__ == "__main__":
    main()
