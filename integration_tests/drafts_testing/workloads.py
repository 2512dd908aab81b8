"""Random requests, and random ways to serve them that may not show in what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drafts_testing import budgets
from drafts_testing.bench import Bench, Request, Setup
from thalweg.dspark import graph_sizes
from thalweg.interfaces import CompletionOutput, SamplingParams

VOCAB = 24
SLOW_WAYS = ("small batches, chunks", "recomputed", "recomputed, overlapping", "recomputed, overlapping, by throughput")
"""Of `schedules`: those that take many steps."""


def make_requests(count: int, seed: int, *, temperatures: Sequence[float] = (0.0,)) -> list[Request]:
    """Short requests that end in every way: end token, stop strings and tokens, lengths; some not before a minimum."""
    random = np.random.default_rng(seed)
    requests: list[Request] = []
    for _ in range(count):
        prompt = random.integers(0, VOCAB, int(random.choice([1, 2, 5, 13, 30, 60]))).tolist()
        max_tokens = int(random.choice([1, 2, 3, 7, 20, 40]))
        has_minimum = random.random() < 0.3
        requests.append(
            (
                prompt,
                SamplingParams(
                    max_tokens=max_tokens,
                    min_tokens=int(random.integers(0, max_tokens + 1)) if has_minimum else 0,
                    temperature=float(random.choice(temperatures)),
                    top_p=float(random.choice([1.0, 0.9, 0.5])),
                    top_k=int(random.choice([-1, 3, 10])),
                    seed=int(random.integers(2**63)),
                    ignore_eos=bool(random.random() < 0.4),
                    stop=tuple(random.choice(["ab", "x", "ch", "dd"], 2).tolist()) if random.random() < 0.3 else (),
                    stop_token_ids=tuple(random.integers(3, VOCAB, 2).tolist()) if random.random() < 0.2 else (),
                ),
            )
        )
    return requests


def scatter(count: int, seed: int, last_step: int) -> dict[int, int]:
    """Arrivals: the step before which each request comes."""
    return dict(enumerate(np.random.default_rng(seed).integers(0, last_step, count).tolist()))


def rising(max_rows: int, draft_length: int) -> tuple[tuple[int, float], ...]:
    """Step times with which some drafts are worth their time and others are not."""
    return tuple((size, 10.0 + 80.0 * size / max_rows) for size in graph_sizes(max_rows * (1 + draft_length)))


def schedules(setup: Setup, *, lengths_vary: bool, preempts: bool) -> dict[str, Setup]:
    """Ways to serve with the drafts of a setup: batches, chunks, overlap, both cores; lengths and recomputation."""

    def change(**changes: Any) -> Setup:
        options = {"prefill_interval_all": 3} | dict(changes.pop("options", {}))
        return replace(setup, options={**setup.options, **options}, **changes)

    drafts = setup.draft_length
    ways = {
        "in place": change(options={"max_num_seqs": 200}),
        "overlapping": change(is_async=True, options={"max_num_seqs": 200}),
        "planned in Python": change(is_async=True, is_native=False, options={"max_num_seqs": 60}),
        "small batches, chunks": change(
            is_async=True, options={"max_num_seqs": 7, "chunked_prefill": True, "max_num_batched_tokens": 50}
        ),
    }
    if lengths_vary and drafts:
        ways |= {
            "by plan": change(budget=lambda: budgets.planned((3, 1, 6, 2)), options={"max_num_seqs": 60}),
            "by plan, overlapping": change(
                is_async=True, budget=lambda: budgets.planned((2, 6, 1, 4, 3)), options={"max_num_seqs": 60}
            ),
            "by throughput": change(step_times=rising(50, drafts), options={"max_num_seqs": 50}),
            "by throughput, overlapping": change(
                is_async=True, step_times=rising(50, drafts), options={"max_num_seqs": 50}
            ),
            "by throughput, overlapping, in Python": change(
                is_async=True, is_native=False, step_times=rising(20, drafts), options={"max_num_seqs": 20}
            ),
            "by measured throughput": change(
                is_async=True, is_timed=True, step_times=rising(100, drafts), options={"max_num_seqs": 100}
            ),
        }
    if preempts:
        few = {"max_num_seqs": 12}
        ways |= {
            "recomputed": change(num_blocks=24, options=few),
            "recomputed, overlapping": change(is_async=True, num_blocks=24, options=few),
        }
    if lengths_vary and preempts and drafts:
        ways["recomputed, overlapping, by throughput"] = change(
            is_async=True, num_blocks=24, step_times=rising(12, drafts), options={"max_num_seqs": 12}
        )
    return ways


class Served:
    """What requests said in one setup, and what happened on the way."""

    def __init__(self, setup: Setup, requests: Sequence[Request], arrivals: Mapping[int, int] | None = None) -> None:
        bench = Bench(setup)
        bench.keep_records()
        with bench.engine:
            outputs = bench.serve(requests, arrivals)
        self.said: list[CompletionOutput] = [output.outputs[0] for output in outputs]
        self.errors = [output.error for output in outputs if output.error is not None]
        self.num_preemptions = sum(output.metrics.num_preemptions for output in outputs if output.metrics)
        rows = [record.outcome for record in bench.records if not record.plan.token_ids.size]
        self.verified = np.concatenate([outcome.num_verified[outcome.num_verified > 0] for outcome in rows])
        self.accepted = np.concatenate([outcome.num_accepted[outcome.num_verified > 0] for outcome in rows])
        self.num_steps = len(rows)

    def same_as(self, other: Served) -> bool:
        return self.said == other.said
