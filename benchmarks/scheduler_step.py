"""Time to plan and to process one decode step with five drafts, in the C++ core alone and as Python calls.

The targets are half of what the system we measure ourselves against takes, scaled to this machine: `calibrate_host.cpp`
prints 57 us on the machine of those numbers.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from report import Row, arguments, publish

from thalweg.interfaces import StepKind, StepPlan, StepResult, VoteRound
from thalweg.scheduler import Scheduler, SchedulerConfig

HERE = Path(__file__).resolve().parent
CORE = HERE.parent / "packages" / "scheduler" / "cpp"
CASES = ((64, 0), (256, 0), (1024, 0), (1024, 10_000))
"""Running and waiting sequences."""
PEER_US = {64: (8.0, 9.0), 256: (32.0, 21.0), 1024: (137.0, 84.0)}
"""Schedule and process medians of the peer at that many running sequences."""
PEER_CALIBRATION_US = 57.0
DRAFT_LENGTH = 5
BLOCK_SIZE = 128
LONGEST_PROMPT = 1024
VOCAB_SIZE = 1 << 17
NO_VOTE, PREFILL, DECODE = VoteRound.NONE, StepKind.PREFILL, StepKind.DECODE
"""Reading an enum member from its class costs a tenth of a microsecond in Python 3.11."""
NUM_SAMPLES = 16
"""Results prepared before the clock starts, so that their making does not disturb the caches."""


@dataclass(frozen=True)
class Times:
    """Medians in microseconds."""

    schedule: float
    process: float


def measure_calls(running: int, waiting: int, num_steps: int) -> Times:
    """The calls an engine makes: votes, plan, process; arrays and objects included, their release not."""
    scheduler = make_scheduler(running, num_steps)
    generator = np.random.default_rng(7)
    for length in generator.integers(1, LONGEST_PROMPT + 1, running + waiting):
        scheduler.add(np.full(length, 5, np.int32), max_tokens=1 << 19, eos_token_id=1)
    prompts = plan_step(scheduler)
    assert len(prompts.sequence_ids) == running
    scheduler.process(sample(0, running, 0, generator))
    samples = [sample(0, running, DRAFT_LENGTH, generator) for _ in range(NUM_SAMPLES)]
    planning, processing = [], []
    for step in range(1, num_steps + 1):
        result = replace(samples[step % NUM_SAMPLES], step=step)
        begin = time.perf_counter_ns()
        plan = plan_step(scheduler)
        planned = time.perf_counter_ns()
        assert len(plan.sequence_ids) == running
        ready = time.perf_counter_ns()
        outcome = scheduler.process(result)
        processed = time.perf_counter_ns()
        planning.append((planned - begin) / 1000)
        processing.append((processed - ready) / 1000)
        del plan, outcome
    return Times(statistics.median(planning), statistics.median(processing))


def make_scheduler(running: int, num_steps: int) -> Scheduler:
    """Room for everybody, so that nothing is preempted and nobody finishes."""
    longest = LONGEST_PROMPT + (num_steps + 1) * (1 + DRAFT_LENGTH)
    config = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=running * LONGEST_PROMPT,
        max_model_len=1 << 20,
        chunked_prefill=True,
    )
    return Scheduler(
        config,
        num_blocks=running * (longest // BLOCK_SIZE + 2) * 10 // 8 + 2,
        num_state_slots=running + 2,
        block_size=BLOCK_SIZE,
        draft_length=DRAFT_LENGTH,
        tail_length=3,
        vocab_size=VOCAB_SIZE,
    )


def plan_step(scheduler: Scheduler) -> StepPlan:
    """One step of a single rank, as `run_local_vote` does it."""
    ballot = scheduler.begin_step(scheduler.has_running, scheduler.has_half_prefilled)
    is_prefill = ballot.round is not NO_VOTE and ballot.wants and scheduler.try_prefill()
    return scheduler.finish_step(PREFILL if is_prefill else DECODE)


def sample(step: int, rows: int, width: int, generator: np.random.Generator) -> StepResult:
    """A result with `width` drafts per row, of which any number is accepted, equally likely."""
    num_accepted = generator.integers(0, width + 1, (rows, 1))
    return StepResult(
        step=step,
        sampled_token_ids=np.full(rows, 100, np.int32),
        accepted_token_ids=np.where(np.arange(width) < num_accepted, 101, -1).astype(np.int32),
        draft_token_ids=np.full((rows, width), 101, np.int32),
        confidences=np.full((rows, width), 0.5, np.float32),
        row_status=None,
    )


def build(folder: Path, name: str, *options: str) -> Callable[..., str]:
    """Compile a program of this folder; the result runs it and returns what it prints."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise SystemExit("no C++ compiler found (c++, g++ or clang++); the calibration needs one")
    program = folder / name
    subprocess.run([compiler, "-std=c++20", *options, HERE / f"{name}.cpp", "-o", program], check=True)
    return lambda *args: subprocess.run([program, *map(str, args)], check=True, capture_output=True, text=True).stdout


def calibrate(folder: Path) -> float:
    """Median microseconds of the fixed mix of work that makes two machines comparable; the best of three runs."""
    run = build(folder, "calibrate_host", "-O2")
    return min(float(re.search(r"median ([\d.]+)", run())[1]) for _ in range(3))  # type: ignore[index]


def make_row(running: int, waiting: int, core: Times, calls: Times, calibration_us: float) -> Row:
    row: dict[str, float | int] = {"running": running, "waiting": waiting}
    scale = calibration_us / PEER_CALIBRATION_US / 2
    for name, peer_us in zip(("schedule", "process"), PEER_US[running], strict=True):
        target_us = peer_us * scale
        core_us, call_us = getattr(core, name), getattr(calls, name)
        row |= {
            f"{name}: target us": target_us,
            "core us" if name == "schedule" else "core us ": core_us,
            "call us" if name == "schedule" else "call us ": call_us,
            "call / target" if name == "schedule" else "call / target ": call_us / target_us,
        }
    return row


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=1000, help="decode steps per row")
    options = parser.parse_args()
    num_steps = 20 if options.smoke else options.steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibration_us = calibrate(folder)
        level = "-O1" if options.smoke else "-O3"
        run_core = build(folder, "scheduler_step", level, f"-I{CORE / 'include'}", *map(str, CORE.glob("src/*.cpp")))
        print(f"calibration: {calibration_us:.1f} us here, {PEER_CALIBRATION_US:.0f} us where the peer was measured")
        rows = []
        for running, waiting in CASES[:1] if options.smoke else CASES:
            core = Times(*map(float, run_core(running, waiting, num_steps).split()))
            rows.append(make_row(running, waiting, core, measure_calls(running, waiting, num_steps), calibration_us))
    publish(rows, options.json)


if __name__ == "__main__":
    main()
