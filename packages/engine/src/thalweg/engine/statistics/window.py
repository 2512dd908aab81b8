"""A sliding window over the last steps, and the figures it gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.statistics.figures import Capacity, Endings, Figures, Load, Speculation, Speed, Timing
from thalweg.engine.statistics.record import StepRecord
from thalweg.interfaces import GrammarCounts, StepKind, StepStats

Counts = NDArray[np.int64]
"""[n] rows by length: how many have length 0, 1, 2, ..."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the window keeps of a step: the record without the arrays of its plan, which are large."""

    end_s: float
    is_prefill: bool
    num_prompt_tokens: int
    num_output_tokens: int
    verified: Counts
    """Decode rows with a token, by verify length."""
    accepted: Counts
    """The same rows by accepted length."""
    flops: float
    forward_ms: float
    sampler_ms: float
    mask_ms: float
    step_ms: float
    first_token_ms: tuple[float, ...]
    moe_load: tuple[float, float] | None
    confidence_error: tuple[float, int]
    """Sum over drafts, and how many."""
    num_finished: int
    finished_output_tokens: int
    finished_prompt_tokens: int

    @classmethod
    def of(cls, record: StepRecord, end_s: float) -> _Sample:
        plan, outcome, stats = record.plan, record.outcome, record.plan.stats
        is_prefill = plan.kind is StepKind.PREFILL
        rows = outcome.num_verified > 0
        none = np.zeros(0, np.int64)
        errors = record.confidence_errors
        return cls(
            end_s=end_s,
            is_prefill=is_prefill,
            num_prompt_tokens=int(plan.query_lengths.sum()) if is_prefill else 0,
            num_output_tokens=record.num_output_tokens,
            verified=none if is_prefill else np.bincount(outcome.num_verified[rows]),
            accepted=none if is_prefill else np.bincount(outcome.num_accepted[rows]),
            flops=stats.total_flops,
            forward_ms=record.forward_ms,
            sampler_ms=record.sampler_ms,
            mask_ms=record.mask_ms,
            step_ms=record.step_ms,
            first_token_ms=record.first_token_ms,
            moe_load=record.moe_load,
            confidence_error=(float(errors.sum()), errors.size),
            num_finished=stats.num_finished,
            finished_output_tokens=stats.finished_output_tokens,
            finished_prompt_tokens=stats.finished_prompt_tokens,
        )


class StepWindow:
    """The last steps. The oldest only opens the window: sums and rates are of what came after it, up to now."""

    def __init__(self, num_steps: int, capacity: Capacity | None) -> None:
        """num_steps: steps that count, besides the one that opens the window; at least 1."""
        self._samples: deque[_Sample] = deque(maxlen=num_steps + 1)
        self._capacity = capacity
        self._newest: StepRecord | None = None

    def add(self, record: StepRecord, end_s: float) -> None:
        """Take a step that ended at this time, in seconds of any clock."""
        self._samples.append(_Sample.of(record, end_s))
        self._newest = record

    def figures(self, now_s: float, num_finished: int, grammars: GrammarCounts) -> Figures | None:
        """The figures after the newest step; None before the first one.

        now_s: on the clock of `add`. num_finished, grammars: running totals.
        """
        if self._newest is None:
            return None
        steps, plan = list(self._samples)[1:], self._newest.plan
        step_ms = sum(step.step_ms for step in steps)
        first_tokens = [ms for step in steps for ms in step.first_token_ms]
        loads = [step.moe_load for step in steps if step.moe_load is not None]
        return Figures(
            step=plan.step,
            kind=plan.kind,
            speed=self._speed(steps, now_s),
            speculation=_speculation(steps),
            load=_load(plan.stats, self._capacity),
            endings=_endings(steps, plan.stats, num_finished),
            prefill_share=_ratio(sum(step.step_ms for step in steps if step.is_prefill), step_ms),
            max_first_token_ms=max(first_tokens, default=None),
            mean_first_token_ms=_ratio(sum(first_tokens), len(first_tokens)),
            imbalance=_ratio(sum(most for _, most in loads), sum(mean for mean, _ in loads)),
            mfu=self._mfu(steps),
            timings=_timings(steps, step_ms),
            grammars=grammars,
        )

    def _speed(self, steps: Sequence[_Sample], now_s: float) -> Speed:
        newest, elapsed_s = self._samples[-1], now_s - self._samples[0].end_s
        return Speed(
            current_steps=_ratio(1000.0, newest.step_ms),
            average_steps=_ratio(len(steps), elapsed_s),
            current_tokens=_ratio(1000.0 * newest.num_output_tokens, newest.step_ms),
            prompt_tokens=_ratio(sum(step.num_prompt_tokens for step in steps), elapsed_s),
            output_tokens=_ratio(sum(step.num_output_tokens for step in steps), elapsed_s),
        )

    def _mfu(self, steps: Sequence[_Sample]) -> float | None:
        flops, capacity = sum(step.flops for step in steps), self._capacity
        if capacity is None or capacity.peak_tflops is None or not flops:
            return None
        elapsed_s = steps[-1].end_s - self._samples[0].end_s
        return _ratio(flops, elapsed_s * capacity.num_devices * capacity.peak_tflops * 1e12)


def _speculation(steps: Sequence[_Sample]) -> Speculation:
    verified, accepted = _total(step.verified for step in steps), _total(step.accepted for step in steps)
    drafts_verified, drafts_accepted = _rows_reaching(verified), _rows_reaching(accepted)
    return Speculation(
        num_verified=int(drafts_verified.sum()),
        num_accepted=int(drafts_accepted.sum()),
        accepted_by_position=tuple(
            float(drafts_accepted[i] if i < drafts_accepted.size else 0) / rows
            for i, rows in enumerate(drafts_verified.tolist())
        ),
        mean_verify_length=_mean_length(verified),
        mean_accepted_length=_mean_length(accepted),
        confidence_error=_ratio(
            sum(step.confidence_error[0] for step in steps), sum(step.confidence_error[1] for step in steps)
        ),
    )


def _load(stats: StepStats, capacity: Capacity | None) -> Load:
    return Load(
        num_running=stats.num_running,
        num_pending=stats.num_waiting + stats.num_prompted,
        num_chunked=stats.num_chunked,
        batch_fill=None if capacity is None else stats.num_running / capacity.max_num_seqs,
        kv_usage=None if capacity is None else capacity.kv_usage(stats),
        state_usage=None if capacity is None else capacity.state_usage(stats),
        mean_prompt_running=_ratio(stats.prompt_tokens_running, stats.num_running),
        mean_prompt_waiting=_ratio(stats.prompt_tokens_waiting, stats.num_waiting),
        mean_prompt_chunked=_ratio(stats.prompt_tokens_chunked, stats.num_chunked),
    )


def _endings(steps: Sequence[_Sample], stats: StepStats, num_finished: int) -> Endings:
    in_window = sum(step.num_finished for step in steps)
    return Endings(
        num_finished=num_finished,
        num_preempted=stats.num_preempted,
        num_aborted=stats.num_aborted,
        mean_output=_ratio(sum(step.finished_output_tokens for step in steps), in_window),
        mean_prompt=_ratio(sum(step.finished_prompt_tokens for step in steps), in_window),
    )


def _timings(steps: Sequence[_Sample], step_ms: float) -> tuple[Timing, ...]:
    parts = {
        "step": [step.step_ms for step in steps],
        "forward": [step.forward_ms for step in steps],
        "sampler": [step.sampler_ms for step in steps],
    }
    masks = [step.mask_ms for step in steps]
    if any(masks):
        parts["masks"] = masks
    return tuple(
        Timing(name, times[-1], sum(times) / len(times), max(times), len(times), _ratio(sum(times), step_ms))
        for name, times in parts.items()
        if times
    )


def _total(counts: Iterable[Counts]) -> Counts:
    listed = list(counts)
    total = np.zeros(max((each.size for each in listed), default=0), np.int64)
    for each in listed:
        total[: each.size] += each
    return total


def _rows_reaching(counts: Counts) -> Counts:
    """[n-2] rows with at least 1, 2, ... tokens beyond the first."""
    return counts[::-1].cumsum()[::-1][2:]


def _mean_length(counts: Counts) -> float | None:
    return _ratio(float(counts @ np.arange(counts.size)), float(counts.sum()))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
