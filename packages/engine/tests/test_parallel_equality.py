"""Outputs that shared a prompt equal requests of their own: random requests over engines of many kinds."""

from engine_testing.parallel_runs import ParallelCase, compare

from thalweg.engine.tokenizer import Tokenizer

NUM_CASES = 8
"""The soak has more of them."""


def test_outputs_that_share_a_prompt_are_those_of_requests_of_their_own(tokenizer: Tokenizer) -> None:
    assert sum(compare(ParallelCase(seed), tokenizer) for seed in range(NUM_CASES)), "none was preempted"
