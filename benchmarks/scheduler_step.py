"""Time to plan and to process a decode step, in the C++ core alone and as Python calls: with and without drafts,
synchronous and asynchronous, with a fixed verify length and with the verification budget.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from report import Row, arguments, cannot_run, publish

from thalweg.interfaces import StepKind, StepPlan, StepResult, VoteRound
from thalweg.scheduler import Scheduler, SchedulerConfig

HERE = Path(__file__).resolve().parent
CORE = HERE.parent / "packages" / "scheduler" / "cpp"
PEER_US = {
    False: {64: (8.0, 9.0), 256: (32.0, 21.0), 1024: (137.0, 84.0)},
    True: {64: (35.0, 14.0), 256: (173.0, 42.0), 1024: (814.0, 155.0)},
}
"""Medians of the peer's schedule and process, without and with its verification budget, by running sequences."""
PEER_CALIBRATION_US = 57.0
SIZES = (64, 256, 1024)
MANY_WAITING = 10_000
BLOCK_SIZE = 128
LONGEST_PROMPT = 1024
VOCAB_SIZE = 1 << 17
GRAPH_INTERVAL = 8
NO_VOTE, PREFILL, DECODE = VoteRound.NONE, StepKind.PREFILL, StepKind.DECODE
"""Reading an enum member from its class costs a tenth of a microsecond in Python 3.11."""
NUM_SAMPLES = 16
"""Results prepared before the clock starts, so that their making does not disturb the caches."""


@dataclass(frozen=True)
class Case:
    """What one row of the table measures."""

    drafts: int
    is_async: bool
    has_budget: bool
    running: int
    waiting: int = 0


@dataclass
class Times:
    """Microseconds of every step."""

    plan: list[float] = field(default_factory=list)
    correct: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)


def cases(drafts: list[int], sizes: tuple[int, ...]) -> Iterator[Case]:
    for count in drafts:
        for is_async in (False, True):
            for has_budget in (False, True) if count else (False,):
                for running in sizes:
                    yield Case(count, is_async, has_budget, running)
        yield Case(count, False, False, sizes[-1], MANY_WAITING)


def measure_calls(case: Case, num_steps: int) -> Times:
    """The calls an engine makes: votes, plan, correction, process; arrays and objects included, their release not."""
    scheduler = make_scheduler(case, num_steps)
    generator = np.random.default_rng(7)
    for length in generator.integers(1, LONGEST_PROMPT + 1, case.running + case.waiting):
        scheduler.add(np.full(length, 5, np.int32), max_tokens=1 << 19, eos_token_id=1)
    prompts = plan_step(scheduler)
    assert len(prompts.sequence_ids) == case.running
    scheduler.process(sample(0, case.running, 0, generator))
    samples = [sample(0, case.running, case.drafts, generator) for _ in range(NUM_SAMPLES)]
    times = Times()
    lag = 1 if case.is_async else 0
    for step in range(1, num_steps + 1 + lag):
        result = replace(samples[step % NUM_SAMPLES], step=step - lag)
        begin = time.perf_counter_ns()
        plan = plan_step(scheduler)
        times.plan.append((time.perf_counter_ns() - begin) / 1000)
        assert len(plan.sequence_ids) == case.running
        if result.step > 0:
            begin = time.perf_counter_ns()
            outcome = scheduler.process(result)
            times.process.append((time.perf_counter_ns() - begin) / 1000)
            del outcome
        if case.is_async:
            lengths = plan.query_lengths if case.has_budget else None
            begin = time.perf_counter_ns()
            correction = scheduler.correct(step, lengths)
            times.correct.append((time.perf_counter_ns() - begin) / 1000)
            del correction
        del plan
    return times


def make_scheduler(case: Case, num_steps: int) -> Scheduler:
    """Room for everybody, so that nothing is preempted and nobody finishes."""
    longest = LONGEST_PROMPT + (num_steps + 2) * (1 + case.drafts)
    config = SchedulerConfig(
        max_num_seqs=case.running,
        max_num_batched_tokens=case.running * LONGEST_PROMPT,
        max_model_len=1 << 20,
        chunked_prefill=True,
        async_scheduling=case.is_async,
    )
    scheduler = Scheduler(
        config,
        num_blocks=case.running * (longest // BLOCK_SIZE + 2) * 10 // 8 + 2,
        num_state_slots=case.running + 2,
        block_size=BLOCK_SIZE,
        draft_length=case.drafts,
        tail_length=3,
        vocab_size=VOCAB_SIZE,
    )
    if case.has_budget:
        scheduler.set_step_time_curve(step_times(case.running * (1 + case.drafts)))
    return scheduler


def step_times(largest: int) -> list[tuple[int, float]]:
    """A curve of graphs every eight tokens: a floor, then a rise that makes about half of the drafts worth it."""
    sizes = [*range(GRAPH_INTERVAL, largest, GRAPH_INTERVAL), largest]
    return [(size, 10.0 + 20.0 * size / largest) for size in sizes]


def plan_step(scheduler: Scheduler) -> StepPlan:
    """One step of a single rank, votes included."""
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
        confidences=generator.random((rows, width), np.float32),
        row_status=None,
    )


def build(folder: Path, name: str, *options: str) -> Callable[..., str]:
    """Compile a program of this folder; the result runs it and returns what it prints."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        cannot_run("no C++ compiler found (c++, g++ or clang++); the calibration needs one")
    program = folder / name
    subprocess.run([compiler, "-std=c++20", *options, HERE / f"{name}.cpp", "-o", program], check=True)
    return lambda *args: subprocess.run([program, *map(str, args)], check=True, capture_output=True, text=True).stdout


def build_core(folder: Path, is_smoke: bool) -> Callable[..., str]:
    """The core with its own timer. The smoke run compiles all sources as one, which takes a fifth of the time."""
    sources, include = sorted(CORE.glob("src/*.cpp")), f"-I{CORE / 'include'}"
    if not is_smoke:
        return build(folder, "scheduler_step", "-O3", include, *map(str, sources))
    everything = folder / "core.cpp"
    everything.write_text("".join(f'#include "{source}"\n' for source in sources))
    return build(folder, "scheduler_step", "-O0", include, str(everything))


def calibrate(folder: Path, num_runs: int = 3) -> float:
    """Median microseconds of the fixed mix of work that makes two machines comparable; the best of several runs."""
    run = build(folder, "calibrate_host", "-O2")
    return min(float(re.search(r"median ([\d.]+)", run())[1]) for _ in range(num_runs))  # type: ignore[index]


def make_row(case: Case, core: list[float], calls: Times, calibration_us: float) -> Row:
    """core: medians of plan and process inside C++."""
    row: dict[str, float | int | str] = {
        "drafts": case.drafts,
        "mode": "async" if case.is_async else "sync",
        "verify length": "budget" if case.has_budget else "fixed",
        "running": case.running,
        "waiting": case.waiting,
    }
    scale = calibration_us / PEER_CALIBRATION_US / 2
    for name, peer_us, core_us in zip(("plan", "process"), PEER_US[case.has_budget][case.running], core, strict=True):
        call_us: list[float] = getattr(calls, name)
        median = statistics.median(call_us)
        row |= {
            f"{name}: target us": peer_us * scale,
            f"{name}: core us": core_us,
            f"{name}: call us": median,
            f"{name}: p99 us": float(np.percentile(call_us, 99)),
            f"{name}: call / target": median / (peer_us * scale),
        }
    row["correct: call us"] = statistics.median(calls.correct) if calls.correct else ""
    return row


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=1000, help="decode steps per row")
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 5], help="draft lengths to measure (0 5)")
    options = parser.parse_args()
    num_steps = 20 if options.smoke else options.steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibration_us = calibrate(folder, 1 if options.smoke else 3)
        run_core = build_core(folder, options.smoke)
        print(f"calibration: {calibration_us:.1f} us here, {PEER_CALIBRATION_US:.0f} us where the peer was measured")
        rows = []
        for case in cases(options.drafts, SIZES[:1] if options.smoke else SIZES):
            switches = (case.running, case.waiting, num_steps, case.drafts, int(case.is_async), int(case.has_budget))
            core = [float(word) for word in run_core(*switches).split()]
            rows.append(make_row(case, core, measure_calls(case, num_steps), calibration_us))
    publish(rows, options.json)


if __name__ == "__main__":
    main()
