"""One seed, one text: in batches of 1 to 64, with prompts in pieces of every size; what seeds and their absence mean.

Rejection at one draft length, coupled verification at every one. The soak run has all combinations.
"""

from __future__ import annotations

from functools import cache

import pytest

from determinism_testing.company import growing, longest_prompt
from determinism_testing.watched import Rule, Told, drafting, watched
from drafts_testing.bench import Setup
from thalweg.interfaces import SamplingParams

DRAFT_LENGTHS = range(6)
REJECTION = drafting("rejection", 3)


def coupled(draft_length: int) -> Setup:
    return drafting("coupled", draft_length, is_async=draft_length % 2 == 1)


@cache
def alone() -> dict[Rule, Told]:
    """The watched requests, each served by itself, one after the other."""
    return {
        "rejection": Told(REJECTION, watched(), max_num_seqs=1),
        "coupled": Told(coupled(0), watched(), max_num_seqs=1),
    }


def test_a_text_of_rejection_is_the_same_in_batches_of_1_to_64() -> None:
    in_company = growing(REJECTION, 64)
    assert set(range(1, 65)) <= in_company.batch_sizes
    assert in_company.said == growing(REJECTION, 1).said


@cache
def long_text() -> tuple[int, ...]:
    """The longest coupled text, by a batch of one."""
    return growing(coupled(5), 1).said[0].token_ids


@pytest.mark.parametrize("draft_length", DRAFT_LENGTHS)
def test_a_coupled_text_is_the_same_in_batches_of_1_to_64_with_any_drafts(draft_length: int) -> None:
    """All sizes with three drafts, every ninth one with others."""
    at_a_time = 1 if draft_length == 3 else 9
    in_company = growing(coupled(draft_length), 64, at_a_time)
    assert {*range(1, 65, at_a_time), 64} <= in_company.batch_sizes
    said = in_company.said[0].token_ids
    assert said == long_text()[: len(said)]


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_a_text_is_the_same_with_its_prompt_in_pieces_of_every_size(rule: Rule) -> None:
    """Odd sizes by one rule, even ones and whole prompts by the other, with another draft length for each size."""
    num_steps = []
    sizes = range(1, longest_prompt(), 2) if rule == "rejection" else [*range(2, longest_prompt(), 2), longest_prompt()]
    for size in sizes:
        told = Told(REJECTION if rule == "rejection" else coupled(size % 6), watched(), chunk=size)
        assert told == alone()[rule], size
        num_steps.append(told.num_prompt_steps)
    assert num_steps[0] >= longest_prompt() / sizes[0]
    assert (num_steps[-1] == 1) == (rule == "coupled")


def test_the_same_prompt_with_other_seeds_says_other_things() -> None:
    """If seeds did not matter, nothing would be left to compare."""
    requests = [
        ([3, 4, 5], SamplingParams(temperature=1.0, max_tokens=14, seed=seed, ignore_eos=True)) for seed in range(20)
    ]
    assert len({said.token_ids for said in Told(coupled(3), requests).said}) == 20


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_a_request_without_a_seed_depends_on_how_many_came_before_it(rule: Rule) -> None:
    """Its seed is drawn when it comes, from that of the engine: its number among all requests decides, nothing else."""
    setup = drafting(rule, 3)
    unseeded = [3, 4, 5], SamplingParams(temperature=1.0, max_tokens=14, ignore_eos=True)
    first = Told(setup, [unseeded, *watched()])
    assert first.said[0] != Told(setup, [watched()[0], unseeded]).said[1]
    in_other_company = Told(drafting(rule, 3, is_async=True), [unseeded, *watched()[::-1]], max_num_seqs=2)
    assert in_other_company.said[0] == first.said[0]
