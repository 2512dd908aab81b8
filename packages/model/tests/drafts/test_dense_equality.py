"""Drafts over the cache equal those of a second implementation without one, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from model_testing.cases import Case
from model_testing.draft_session import DraftSession

CASES = (
    ("tiny_a", "quant", 3),
    ("tiny_a", "plain", 2),
    ("two layers, a target with Engram", "quant", 5),
    ("two layers, a target with Engram", "plain", 1),
    ("two layers, tied head, one expert, small window", "quant", 4),
)
TEMPERATURES = (1.0, 0.4, 2.5, 0.05, 1.7)
NUM_STEPS = 3


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: ", ".join(map(str, CASES[number])))
def test_drafts_of_prompts_of_any_length_and_chunking_are_those_of_the_dense_drafter(
    number: int, load_case: Callable[..., Case]
) -> None:
    """Every fifth length of 1..70 in each case, so all in all; `soak` runs every length in every chunking."""
    name, mode, length = CASES[number]
    case = load_case(name, mode)
    session = DraftSession(case, TEMPERATURES[:length], seed=number)
    for prompt in range(1 + number, 71, 5):
        chunk = 1 if prompt < 15 else (5, 6, 17, 200)[prompt // 5 % 4]
        session.add(case.tokens(prompt + NUM_STEPS * (length + 1) + 1, seed=prompt), prompt, chunk)
    session.run(NUM_STEPS)
