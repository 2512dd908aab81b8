"""Long random runs of requests with several outputs; `docs/soak.md` keeps the results."""

import pytest
from engine_testing.parallel_runs import ParallelCase, compare

from thalweg.engine.tokenizer import Tokenizer

CASES, PART = 1000, 50


@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_outputs_that_share_a_prompt_are_those_of_requests_of_their_own(tokenizer: Tokenizer, first: int) -> None:
    for seed in range(first, first + PART):
        compare(ParallelCase(seed), tokenizer)
