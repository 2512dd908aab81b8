"""Time to decide how many drafts a decode step verifies, with five drafts per sequence: in C++ and in numpy.

The targets are 50 us for 256 sequences and 250 us for 1024, scaled to this machine: `calibrate_host.cpp` prints 57 us
on the machine they are meant for. The C++ figure is the one a scheduler pays; survival of two rounds is given, checks
of it included.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from report import Row, arguments, publish
from scheduler_step import CORE, PEER_CALIBRATION_US, build, calibrate

from thalweg.dspark import ThroughputBudget, graph_sizes

DRAFT_LENGTH = 5
TARGETS_US = {64: None, 256: 50.0, 1024: 250.0}
SOURCES = ("verify_budget", "step_time_estimators")


def measure_numpy(num_rows: int, num_steps: int) -> float:
    """Median microseconds of the twin in numpy, which is there to be read."""
    generator = np.random.default_rng(7)
    confidences = generator.uniform(0.4, 1.0, (16, num_rows, DRAFT_LENGTH)).astype(np.float32)
    rounds = [list(batch) for batch in np.multiply.accumulate(confidences, axis=2, dtype=np.float32)]
    budget = ThroughputBudget()
    sizes = graph_sizes(num_rows * (1 + DRAFT_LENGTH))
    budget.set_step_time_curve([(size, 10 + 4 * size / sizes[-1] + 6 * (size / sizes[-1]) ** 2) for size in sizes])
    times = []
    for step in range(num_steps):
        begin = time.perf_counter_ns()
        budget.verify_lengths(rounds[step % 16], rounds[(step + 1) % 16])
        times.append((time.perf_counter_ns() - begin) / 1000)
    return statistics.median(times)


def make_row(num_rows: int, scale: float, figures: list[float], numpy_us: float) -> Row:
    median_us, p99_us, _, _, record_us = figures
    target_us = TARGETS_US[num_rows]
    return {
        "sequences": num_rows,
        "drafts": num_rows * DRAFT_LENGTH,
        "target us": "" if target_us is None else target_us * scale,
        "C++ us": median_us,
        "p99 us": p99_us,
        "C++ / target": "" if target_us is None else median_us / (target_us * scale),
        "numpy us": numpy_us,
        "record a step, us": record_us,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=5000, help="decisions per row")
    options = parser.parse_args()
    num_steps = 20 if options.smoke else options.steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibration_us = calibrate(folder, 1 if options.smoke else 3)
        level = "-O0" if options.smoke else "-O3"
        sources = [str(CORE / "src" / f"{source}.cpp") for source in SOURCES]
        run = build(folder, "scheduler_budget", level, "-ffp-contract=off", f"-I{CORE / 'include'}", *sources)
        print(f"calibration: {calibration_us:.1f} us here, {PEER_CALIBRATION_US:.0f} us where the targets belong")
        scale = calibration_us / PEER_CALIBRATION_US
        rows = []
        for num_rows in list(TARGETS_US)[: 1 if options.smoke else None]:
            figures = [float(word) for word in run(num_rows, num_steps).split()]
            rows.append(make_row(num_rows, scale, figures, measure_numpy(num_rows, max(5, num_steps // 50))))
    publish(rows, options.json)


if __name__ == "__main__":
    main()
