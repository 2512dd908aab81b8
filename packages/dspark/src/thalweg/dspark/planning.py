"""What variable verification would gain over concurrency, before anything is deployed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import is_real, require_integer
from thalweg.dspark.budget import ThroughputBudget
from thalweg.dspark.curve import StepTimeCurve
from thalweg.dspark.estimators import MIN_SAMPLER_SAMPLES
from thalweg.dspark.workload import Batches, Workload
from thalweg.interfaces import ConfigError, shown

MAX_TOKENS = 20_000_000
"""Of all steps at one concurrency: what a gigabyte of memory holds."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Long-run figures of one way to verify."""

    tokens_per_s: float
    verified_drafts: float
    """Per sequence and step."""
    accepted_length: float
    """Tokens committed per sequence and step, the target's own included."""
    step_ms: float


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Fixed against variable verification at one concurrency."""

    num_sequences: int
    fixed: Throughput
    variable: Throughput

    @property
    def gain(self) -> float:
        """0.05 = variable verification brings 5 % more tokens per second."""
        return self.variable.tokens_per_s / self.fixed.tokens_per_s - 1


def plan(
    curve: StepTimeCurve,
    workload: Workload,
    concurrencies: Sequence[int],
    *,
    num_batches: int = 200,
    sampler_ms: float = 0.0,
    seed: int = 0,
) -> list[PlanRow]:
    """One row for each number of sequences, from num_batches steps drawn from the workload.

    Every step takes the curve's time for its graph and sampler_ms. The budget knows both, and the steps' survival: in
    an engine it looks one or two steps back, which costs a little more the faster acceptance changes. Equal seeds give
    equal rows, whatever other concurrencies are asked for. Raises ConfigError for sizes and times that are none, and
    when the curve ends before all drafts of all sequences.
    """
    require_integer("num_batches", num_batches, 1)
    require_integer("seed", seed, 0)
    if not is_real(sampler_ms) or not 0 <= sampler_ms < math.inf:
        raise ConfigError(f"sampler_ms is {shown(sampler_ms)}; a finite number of at least 0 is needed")
    _check_concurrencies(curve, workload.draft_length, concurrencies, num_batches)
    return [
        _row(curve, workload.draw(np.random.default_rng(seed + n), num_batches, n), sampler_ms) for n in concurrencies
    ]


def concurrencies_within(curve: StepTimeCurve, draft_length: int) -> list[int]:
    """Powers of two, and the largest number of sequences whose drafts all fit the curve.

    Raises ConfigError when those of a single one do not.
    """
    largest = curve.largest // (1 + draft_length)
    if largest < 1:
        raise ConfigError(f"the curve ends at {curve.largest} query tokens; one sequence needs {1 + draft_length}")
    return [*(1 << i for i in range((largest - 1).bit_length())), largest]


def _check_concurrencies(
    curve: StepTimeCurve, draft_length: int, concurrencies: Sequence[int], num_batches: int
) -> None:
    for i, num_sequences in enumerate(concurrencies):
        require_integer(f"concurrencies[{i}]", num_sequences, 1)
        num_tokens = num_sequences * (1 + draft_length)
        if num_tokens > curve.largest:
            raise ConfigError(
                f"the curve ends at {curve.largest} query tokens; {num_sequences} sequences with {draft_length} drafts "
                f"need {num_tokens}"
            )
        if num_batches * num_tokens > MAX_TOKENS:
            raise ConfigError(
                f"{num_batches} batches of {num_sequences} sequences with {draft_length} drafts are "
                f"{num_batches * num_tokens} query tokens; at most {MAX_TOKENS} are simulated"
            )


def _row(curve: StepTimeCurve, batches: Batches, sampler_ms: float) -> PlanRow:
    num_batches, num_sequences, draft_length = batches.held.shape
    budget = _budget(curve, num_sequences, sampler_ms)
    all_drafts = np.full((num_batches, num_sequences), 1 + draft_length)
    chosen = np.stack([budget.verify_lengths(list(batch), list(batch)) for batch in batches.survival])
    fixed, variable = (_throughput(curve, batches.held, lengths, sampler_ms) for lengths in (all_drafts, chosen))
    return PlanRow(num_sequences, fixed, variable)


def _budget(curve: StepTimeCurve, num_sequences: int, sampler_ms: float) -> ThroughputBudget:
    """A budget that has seen enough steps of this sampler time, all exactly on the curve."""
    budget = ThroughputBudget()
    budget.set_step_time_curve(list(curve))
    size = curve.sizes[0]
    for _ in range(MIN_SAMPLER_SAMPLES):
        budget.record_step_time(num_sequences, size, curve.time_ms(size), sampler_ms)
    return budget


def _throughput(
    curve: StepTimeCurve, held: NDArray[np.float64], lengths: NDArray[Any], sampler_ms: float
) -> Throughput:
    """held: [B, N, G]; lengths: [B, N] query tokens of each sequence."""
    num_batches, num_sequences, draft_length = held.shape
    num_rows = num_batches * num_sequences
    accepted = float(held[np.arange(draft_length) < lengths[:, :, None] - 1].sum())
    total_ms = sum(curve.time_ms(int(total)) + sampler_ms for total in lengths.sum(axis=1))
    return Throughput(
        tokens_per_s=1000 * (num_rows + accepted) / total_ms,
        verified_drafts=float(lengths.sum()) / num_rows - 1,
        accepted_length=1 + accepted / num_rows,
        step_ms=total_ms / num_batches,
    )
