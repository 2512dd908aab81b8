"""Asynchronous against synchronous stepping on many random workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from async_testing.workloads import Run, Workload, compare, make_workload, run
from thalweg.dspark import ThroughputBudget
from thalweg.model import Model
from thalweg.scheduler import Scheduler, reference


def reference_core(*args: Any, **options: Any) -> reference.Scheduler:
    """The scheduler in plain Python, with the verification budget in numpy."""
    return reference.Scheduler(*args, **options, verify_budget=ThroughputBudget())


def check_workloads(seeds: Iterable[int], checkpoint: str, model: Model) -> Counter[str]:
    """Run every workload in both modes and compare; what was seen on the asynchronous side.

    The C++ scheduler plans three workloads of four, the one in Python the fourth.
    """
    seen: Counter[str] = Counter()
    for seed in seeds:
        workload = make_workload(seed, model.config.vocab_size)
        core = Scheduler if seed % 4 else reference_core
        try:
            seen += _check(workload, partial(run, workload, checkpoint, model, core))
        except Exception as error:
            error.add_note(f"seed {seed}: {workload}")
            raise
    return seen


def _check(workload: Workload, serve: Callable[..., Run]) -> Counter[str]:
    in_place = serve(is_async=False)
    overlapped = serve(is_async=True, texts=in_place.finals)
    compare(workload, in_place, overlapped)
    if workload.draft_length:
        compare(workload, serve(is_async=False, texts=in_place.finals), overlapped)
    return overlapped.seen
