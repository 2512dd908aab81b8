"""Asynchronous against synchronous stepping on many random workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from async_testing.workloads import Workload, compare, make_workload, run
from thalweg.dspark import ThroughputBudget
from thalweg.model import Model
from thalweg.scheduler import reference


def reference_core(*args: Any, **options: Any) -> reference.Scheduler:
    """The scheduler in plain Python, with the verification budget in numpy."""
    return reference.Scheduler(*args, **options, verify_budget=ThroughputBudget())


def check_workloads(seeds: Iterable[int], checkpoint: str, model: Model) -> Counter[str]:
    """Run every workload in both modes and compare; what was seen on the asynchronous side."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        workload = make_workload(seed, model.config.vocab_size)
        try:
            seen += _check(workload, checkpoint, model)
        except Exception as error:
            error.add_note(f"seed {seed}: {workload}")
            raise
    return seen


def _check(workload: Workload, checkpoint: str, model: Model) -> Counter[str]:
    plain = run(workload, checkpoint, model, reference_core, is_async=False)
    texts = plain.finals
    overlapped = run(workload, checkpoint, model, reference_core, is_async=True, texts=texts)
    compare(workload, plain, overlapped)
    if workload.draft_length:
        compare(workload, run(workload, checkpoint, model, reference_core, is_async=False, texts=texts), overlapped)
    return overlapped.seen
