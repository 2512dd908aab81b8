"""Random models, drafters and schedules: greedy and coupled texts are those without drafts, whatever happens."""

from __future__ import annotations

import numpy as np
import pytest

from drafts_testing import drafters
from drafts_testing.bench import Setup
from drafts_testing.tables import Memory, Tables
from drafts_testing.workloads import VOCAB, Served, make_requests, scatter, schedules

NUM_MODELS, BATCH = 100, 5
CHOICES = (
    drafters.drawn,
    drafters.likeliest,
    drafters.half_right,
    drafters.least_likely,
    drafters.illegal_at_times,
    drafters.drawn_at_first,
    drafters.overruled,
)
CONFIDENCES = (drafters.even, drafters.random, drafters.exact, drafters.telling, drafters.nonsense)


@pytest.mark.parametrize("first_seed", range(0, NUM_MODELS, BATCH))
def test_texts_are_those_without_drafts(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + BATCH):
        random = np.random.default_rng(seed)
        target = Tables.random(
            VOCAB,
            seed,
            list(Memory)[random.integers(3)],
            spread=float(random.uniform(0.5, 3)),
            grain=float(random.choice([0.0, 0.5])),
        )
        drafts = [target, target.with_noise(seed + 1, 1.0), target.inverted()][random.integers(3)]
        requests = make_requests(60, seed, temperatures=(0.0, 0.0, 0.5, 1.0, 3.0))
        coupled = Setup(target=target, verification="coupled")
        expected = Served(coupled, requests)
        setup = Setup(
            target=target,
            drafts=drafts,
            draft_length=int(random.integers(1, 7)),
            choose=CHOICES[random.integers(len(CHOICES))],
            confide=CONFIDENCES[random.integers(len(CONFIDENCES))],
            verification="coupled" if random.random() < 0.7 else "rejection",
        )
        compared = [
            number
            for number, (_, params) in enumerate(requests)
            if setup.verification == "coupled" or params.temperature == 0
        ]
        for way, changed in schedules(setup, lengths_vary=True, preempts=True).items():
            served = Served(changed, requests, scatter(60, seed, 30))
            for number in compared:
                assert served.said[number] == expected.said[number], (seed, way, number, setup)
            assert not served.errors
