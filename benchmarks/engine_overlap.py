"""What asynchronous stepping hides: a device step of 20 ms and post-processing of 15 ms, overlapped and in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from report import Row, arguments, publish
from scripted import build_scripted_engine, decode

from thalweg.engine import Timeline

FORWARD_MS, PROCESS_MS = 20.0, 15.0
NUM_SEQUENCES = 8


def measure(is_async: bool, num_steps: int, timeline: Timeline | None = None) -> Row:
    """One mode. The floor is what remains if nothing but the two scripted parts took time."""
    engine = build_scripted_engine(
        is_async=is_async,
        forward_s=FORWARD_MS / 1000,
        process_s=PROCESS_MS / 1000,
        num_sequences=NUM_SEQUENCES,
        timeline=timeline,
    )
    with engine:
        milliseconds = 1000 * decode(engine, NUM_SEQUENCES, num_steps)
    floor = max(FORWARD_MS, PROCESS_MS) if is_async else FORWARD_MS + PROCESS_MS
    median = float(np.median(milliseconds))
    return {
        "stepping": "asynchronous" if is_async else "synchronous",
        "device ms": FORWARD_MS,
        "post-process ms": PROCESS_MS,
        "floor ms": floor,
        "ms per step, median": median,
        "90 % ms": float(np.percentile(milliseconds, 90)),
        "median / floor": median / floor,
        "% of the device's time used": 100 * FORWARD_MS / float(np.mean(milliseconds)),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=200, help="decode steps to measure")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="write sync.json and async.json, Chrome traces")
    options = parser.parse_args()
    rows = []
    for is_async in (False, True):
        timeline = None if options.trace is None else Timeline()
        rows.append(measure(is_async, 3 if options.smoke else options.steps, timeline))
        if timeline is not None:
            options.trace.mkdir(parents=True, exist_ok=True)
            timeline.write(options.trace / ("async.json" if is_async else "sync.json"))
    publish(rows, options.json)


if __name__ == "__main__":
    main()
