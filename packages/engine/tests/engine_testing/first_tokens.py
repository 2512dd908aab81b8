"""First tokens of the outputs of one prompt, as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from engine_testing.bench import Bench

from thalweg.engine.inflight import Collected, InflightStep
from thalweg.engine.sampling_row import SequenceToSample
from thalweg.interfaces import StepCorrection, StepKind


class FirstTokens:
    """Replaces what a bench draws for outputs that are not greedy when their prompt has been computed.

    choose: the first token of an output, by its seed.
    """

    def __init__(self, bench: Bench, choose: Callable[[int], int]) -> None:
        self.choose = choose
        self.is_broken: Callable[[int], bool] = lambda seed: False
        self.num_shared: list[int] = []
        """How many outputs each shared prompt served."""
        self._sample, self._collect = bench.runner.sample, bench.runner.collect
        bench.runner.sample = self.sample  # type: ignore[method-assign]
        bench.runner.collect = self.collect  # type: ignore[method-assign]

    def sample(self, step: InflightStep, correction: StepCorrection | None, rows: Sequence[SequenceToSample]) -> None:
        self._sample(step, correction, [replace(row, siblings=()) for row in rows])

    def collect(self, step: InflightStep) -> Collected:
        collected = self._collect(step)
        sampled, broken = collected.result.sampled_token_ids.copy(), collected.broken_rows.copy()
        siblings = [sibling for sequence in step.sequences for sibling in sequence.siblings]
        ends_prompt = step.plan.context_lengths >= step.plan.committed_lengths
        for row, sequence in enumerate(step.sequences if step.plan.kind is StepKind.PREFILL else ()):
            if ends_prompt[row] and not sequence.output_token_ids and sequence.row.temperature:
                self.num_shared.append(1 + len(sequence.siblings))
                sampled[row] = self.choose(sequence.row.seed)
                broken[row] = self.is_broken(sequence.row.seed)
        return replace(
            collected,
            result=replace(collected.result, sampled_token_ids=sampled),
            sibling_ids=np.array([self.choose(sibling.row.seed) for sibling in siblings], np.int32),
            broken_rows=np.concatenate((broken, np.array([self.is_broken(s.row.seed) for s in siblings], np.bool_))),
        )
