"""Counters of the step loop and the periodic line that shows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from thalweg.interfaces import StepKind, StepPlan

_LOG = logging.getLogger(__name__)
LOGGING_INTERVAL_STEPS = 100


@dataclass(slots=True)
class StepTotals:
    """Sums over the steps of an engine since it started; seconds are wall clock."""

    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    num_idle_steps: int = 0
    num_prompt_tokens: int = 0
    """Query tokens of prefill steps, recomputed ones included."""
    num_output_tokens: int = 0
    forward_s: float = 0.0
    """Inside the model: forward pass and logits."""
    step_s: float = 0.0
    """Whole steps, forward included."""

    def minus(self, earlier: StepTotals) -> StepTotals:
        """What happened since an earlier copy."""
        return StepTotals(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(StepTotals)))

    def copy(self) -> StepTotals:
        return self.minus(StepTotals())

    @property
    def share_outside_forward(self) -> float:
        """Part of the step time that is not the model's; 0 before the first step."""
        return 1.0 - self.forward_s / self.step_s if self.step_s else 0.0


class StepStatistics:
    """Adds up steps and logs one line per interval."""

    def __init__(
        self, interval_steps: int = LOGGING_INTERVAL_STEPS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.totals = StepTotals()
        self._interval = interval_steps
        self._clock = clock
        self._window = StepTotals()
        self._window_start_s = clock()

    def record(self, plan: StepPlan, *, num_output_tokens: int, forward_s: float, step_s: float) -> None:
        """Take one finished step."""
        totals = self.totals
        if not plan.sequence_ids.size:
            totals.num_idle_steps += 1
        elif plan.kind is StepKind.PREFILL:
            totals.num_prefill_steps += 1
            totals.num_prompt_tokens += int(plan.query_lengths.sum())
        else:
            totals.num_decode_steps += 1
        totals.num_output_tokens += num_output_tokens
        totals.forward_s += forward_s
        totals.step_s += step_s
        if plan.step % self._interval == self._interval - 1:
            self._log(plan)

    def _log(self, plan: StepPlan) -> None:
        now = self._clock()
        window, elapsed = self.totals.minus(self._window), max(now - self._window_start_s, 1e-9)
        _LOG.info(
            "step %d: %.1f steps/s, %.1f prompt tokens/s, %.1f output tokens/s, %d running, %d waiting (%d half "
            "computed), %d blocks and %d state slots free, %d preempted, %d aborted, %.0f %% outside the forward pass",
            plan.step,
            (window.num_prefill_steps + window.num_decode_steps) / elapsed,
            window.num_prompt_tokens / elapsed,
            window.num_output_tokens / elapsed,
            plan.stats.num_running,
            plan.stats.num_waiting,
            plan.stats.num_chunked,
            plan.stats.num_free_blocks,
            plan.stats.num_free_state_slots,
            plan.stats.num_preempted,
            plan.stats.num_aborted,
            100 * window.share_outside_forward,
        )
        self._window, self._window_start_s = self.totals.copy(), now
