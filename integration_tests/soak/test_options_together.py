"""Many random mixes of options and ways of serving; the short test has the first of them."""

from __future__ import annotations

import pytest

from options_testing.mixes import make_mix
from options_testing.reports import check_reports

FIRST, NUM_MIXES, BATCH, COUNT = 100, 200, 10, 15


@pytest.mark.parametrize("first_seed", range(FIRST, FIRST + NUM_MIXES, BATCH))
def test_random_options_in_one_batch_say_what_each_request_says_alone(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + BATCH):
        mix = make_mix(seed, COUNT)
        run, different = mix.differences()
        assert different == {}, (seed, mix.way, mix.setup, [mix.requests[number] for number in different])
        check_reports(run)
