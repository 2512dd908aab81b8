"""Many short texts of one prompt, each with a seed of its own, tested against the exact law of what may be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from drafts_testing.bench import EOS, Bench, Setup
from drafts_testing.law import ChiSquare, count_texts, joint_law
from thalweg.interfaces import SamplingParams

BATCH = 2048


@dataclass(frozen=True)
class LawRun:
    """A setup, its requests, and how much of the texts is compared."""

    setup: Setup
    num_tokens: int = 4
    prompt: Sequence[int] = (3,)
    params: SamplingParams = field(default_factory=lambda: SamplingParams(ignore_eos=True))
    first_seed: int = 0
    batch: int = BATCH
    prefill_interval: int = 1000
    """Decode steps before new requests are let in; by default whole batches come and go."""
    greedy_every: int = 0
    """After so many requests one at temperature 0, which is not looked at, shares their batch; 0 = none."""
    num_seeds: int = 12_000
    """Of the short test; the soak runs take the same many for all."""

    def test(self, num_seeds: int | None = None) -> tuple[ChiSquare, NDArray[np.float64]]:
        """The test of the joint law, and the mean number of drafts (verified, accepted) of a decode row."""
        bench = Bench(
            replace(
                self.setup,
                options={
                    "max_num_seqs": self.batch,
                    "max_model_len": 16,
                    "max_num_batched_tokens": self.batch * 8,
                    "prefill_interval_all": self.prefill_interval,
                },
            )
        )
        bench.keep_records()
        end = self.first_seed + (num_seeds or self.num_seeds)
        texts: list[Sequence[int]] = []
        with bench.engine:
            for start in range(self.first_seed, end, 10 * self.batch):
                texts += self._texts(bench, range(start, min(end, start + 10 * self.batch)))
        law = joint_law(self.setup.target, self.params, self.prompt, self.num_tokens, EOS)
        counts = count_texts(texts, self.setup.target.vocab_size, self.num_tokens, EOS)
        outcomes = [record.outcome for record in bench.records if not record.plan.token_ids.size]
        numbers = np.array([(outcome.num_verified.sum(), outcome.num_accepted.sum()) for outcome in outcomes])
        rows = sum((outcome.num_verified > 0).sum() for outcome in outcomes)
        return ChiSquare(counts, law), numbers.sum(0) / rows - 1

    def _texts(self, bench: Bench, seeds: range) -> list[Sequence[int]]:
        """One text per seed."""
        params = replace(self.params, max_tokens=self.num_tokens)
        requests = []
        for seed in seeds:
            requests.append((self.prompt, replace(params, seed=seed)))
            if self.greedy_every and seed % self.greedy_every == 0:
                requests.append((self.prompt, replace(params, temperature=0.0)))
        outputs = bench.serve(requests)
        said = zip(outputs, requests, strict=True)
        return [output.outputs[0].token_ids for output, (_, asked) in said if asked.temperature > 0]
