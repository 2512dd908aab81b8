"""The published table for many seeds: the bands are not a matter of luck."""

import numpy as np
import pytest

from thalweg.dspark import BetaWorkload, StepTimeCurve, graph_sizes, plan

POINTS = [(32, 9.99), (96, 10.795), (192, 11.78), (360, 14.421), (576, 18.838)]


def test_every_seed_gives_the_published_table() -> None:
    curve = StepTimeCurve(POINTS).interpolated(graph_sizes(576, 8))
    workload = BetaWorkload(0.70, 5, 4.5)
    for seed in range(100):
        rows = plan(curve, workload, [16, 32, 60, 96], seed=seed)
        gains = [100 * row.gain for row in rows]
        assert (np.array([0.0, 0.5, 3.9, 9.0]) <= gains).all(), (seed, gains)
        assert (np.array([1.2, 2.5, 6.9, 17.0]) >= gains).all(), (seed, gains)
        assert rows[2].variable.verified_drafts == pytest.approx(3.58, abs=0.2)
        assert 2.7 <= rows[3].variable.verified_drafts <= 3.4
