"""A short look at a new machine: does every part run there, how long does it take, and where does the time go."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

import torch
from tools.train.common.compiled import Compiled, compile_all
from tools.train.drafter.train import Amounts, Plan, Run

STEPS = 60
AMOUNTS = Amounts(corpus_texts=512, own_texts=2048)
NUM_KERNELS = 25

_T = TypeVar("_T")


def smoke(plan: Plan) -> None:
    """Print what each part takes. What fails is printed, too, and the next part is tried."""
    run = _section("read", lambda: Run(dataclasses.replace(plan, amounts=AMOUNTS)))
    if run is None:
        return
    _section("eager steps", lambda: _time_steps(run))
    _section("kernels of an eager step", lambda: _profile(run))
    _section("compile", lambda: _compile(run))
    _section("compiled steps", lambda: _time_steps(run))
    _section("kernels of a compiled step", lambda: _profile(run))
    if _section("record", lambda: _record(run)) is None:
        Compiled.is_on = False
        _section("record what was not compiled", lambda: _record(run))
    _section("recorded steps", lambda: _time_steps(run))


def _section(name: str, work: Callable[[], _T]) -> _T | None:
    """What the work returns; None where it fails."""
    start = time.perf_counter()
    try:
        result = work()
    except Exception:
        traceback.print_exc()
        print(f"== {name}: FAILED", flush=True)
        return None
    _wait()
    print(f"== {name}: {time.perf_counter() - start:.2f} s{_memory()}", flush=True)
    return result


def _compile(run: Run) -> bool:
    compile_all()
    run.trainer.step()
    return True


def _record(run: Run) -> bool:
    run.trainer.record()
    return True


def _time_steps(run: Run) -> None:
    trainer = run.trainer
    trainer.optimiser.rate.fill_(0.3)
    trainer.balance_rate.fill_(1e-3)
    for _ in range(3):
        trainer.step()
    _wait()
    trainer.figures.zero_()
    start = time.perf_counter()
    for _ in range(STEPS):
        trainer.step()
    launched = time.perf_counter() - start
    _wait()
    took = time.perf_counter() - start
    figures = " ".join(f"{value:.3f}" for value in (trainer.figures / STEPS).tolist())
    print(f"{STEPS / took:.1f} steps/s, {1000 * took / STEPS:.1f} ms a step, {1000 * launched / STEPS:.1f} of the host")
    print(f"loss, then 1-TV, agreement and confidence by place: {figures}")


def _profile(run: Run) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    sort_by = "self_cpu_time_total"
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        sort_by = "self_cuda_time_total"
    with torch.profiler.profile(activities=activities) as profile:
        run.trainer.step()
        _wait()
    print(profile.key_averages().table(sort_by=sort_by, row_limit=NUM_KERNELS, max_name_column_width=70))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory() -> str:
    if not torch.cuda.is_available():
        return ""
    return f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most"
