"""Drafts of prompts of all lengths in all chunkings, with random acceptance, against those of the dense drafter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from model_testing.cases import NAMES, Case
from model_testing.draft_session import DraftSession

NUM_STEPS = 6


@pytest.mark.parametrize("chunk", [1, 5, 6, 17, 200])
@pytest.mark.parametrize("first", range(1, 6))
@pytest.mark.parametrize("mode", ["quant", "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_drafts_are_those_of_the_dense_drafter(
    name: str, mode: str, first: int, chunk: int, load_case: Callable[..., Case]
) -> None:
    case = load_case(name, mode)
    length = 1 + (first + chunk) % case.model.config.dspark_block_size
    session = DraftSession(case, [0.3 + 0.4 * place for place in range(length)], seed=100 * first + chunk)
    for prompt in range(first, 71, 5):
        session.add(case.tokens(prompt + NUM_STEPS * (length + 1) + 1, seed=prompt), prompt, chunk)
    session.run(NUM_STEPS)
