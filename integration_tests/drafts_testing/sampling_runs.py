"""Many short texts of one prompt, each with a seed of its own, tested against the exact law of what may be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from drafts_testing.bench import Bench, Setup
from drafts_testing.law import ChiSquare, count_texts, joint_law
from thalweg.interfaces import SamplingParams

BATCH = 2048


@dataclass(frozen=True)
class LawRun:
    """A setup, its requests, and how much of the texts is compared."""

    setup: Setup
    num_tokens: int = 4
    prompt: Sequence[int] = (3,)
    params: SamplingParams = field(default_factory=SamplingParams)
    first_seed: int = 0
    batch: int = BATCH
    num_seeds: int = 6000
    """Of the short test; the soak runs take the same many for all."""

    def test(self, num_seeds: int | None = None) -> tuple[ChiSquare, np.ndarray]:
        """The test of the joint law, and the mean number of drafts (verified, accepted) of a decode row."""
        options = {
            "max_num_seqs": self.batch,
            "max_model_len": 16,
            "max_num_batched_tokens": self.batch * 8,
            "prefill_interval_all": 1000,  # whole batches, one after the other
        }
        bench = Bench(replace(self.setup, options=options))
        bench.keep_records()
        params = replace(self.params, max_tokens=self.num_tokens, ignore_eos=True)
        end = self.first_seed + (num_seeds or self.num_seeds)
        texts = []
        with bench.engine:
            for start in range(self.first_seed, end, 10 * self.batch):
                seeds = range(start, min(end, start + 10 * self.batch))
                outputs = bench.serve([(self.prompt, replace(params, seed=seed)) for seed in seeds])
                texts += [output.outputs[0].token_ids for output in outputs]
        law = joint_law(self.setup.target, params, self.prompt, self.num_tokens)
        outcomes = [record.outcome for record in bench.records if not record.plan.token_ids.size]
        numbers = np.array([(outcome.num_verified.sum(), outcome.num_accepted.sum()) for outcome in outcomes])
        rows = sum((outcome.num_verified > 0).sum() for outcome in outcomes)
        return ChiSquare(count_texts(texts, self.setup.target.vocab_size, self.num_tokens), law), numbers.sum(
            0
        ) / rows - 1
