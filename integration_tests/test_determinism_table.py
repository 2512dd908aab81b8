"""The table of promises, a test per cell: what a request with a seed says when something around it changes.

Where the table says no, one fixed request says something else. docs/concepts/reproducibility.md names these tests.
"""

from __future__ import annotations

from functools import cache

import pytest

from determinism_testing.watched import WAYS, Rule, Told, among, drafting, neighbours, short_of_memory, varying, watched
from drafts_testing import budgets
from drafts_testing.bench import Request, Setup

DRAFT_LENGTHS = range(6)
RULES: tuple[Rule, ...] = ("rejection", "coupled")
either_rule = pytest.mark.parametrize("rule", RULES)
LENGTH = 3


@cache
def greedy() -> list[Request]:
    return watched(temperature=0.0)


@cache
def sampled() -> list[Request]:
    return watched()


@cache
def without_drafts(temperature: float | None) -> Told:
    """What the watched requests say without drafts, all in one batch. temperature: 0, or None for their own."""
    return Told(drafting("coupled", 0), watched(temperature))


@cache
def at_fixed_length() -> Told:
    """The same with drafts of one length, under rejection."""
    return Told(drafting("rejection", LENGTH), sampled())


def planned(rule: Rule, *lengths: int, is_async: bool = False) -> Setup:
    return drafting(rule, 5, is_async=is_async, budget=lambda: budgets.planned(lengths))


def with_lengths_that_vary(rule: Rule) -> list[Setup]:
    """By two plans, and by throughput, which looks at the batch; in place and overlapping."""
    return [
        planned(rule, 3, 1, 6, 2),
        planned(rule, 2, 6, 1, 4, 3, is_async=True),
        varying(rule),
        varying(rule, 5, is_async=True),
    ]


@either_rule
def test_greedy_tokens_survive_any_batch_any_chunks_and_overlap(rule: Rule) -> None:
    """Every second way by each rule; the soak run has all pairs."""
    for name in list(WAYS)[RULES.index(rule) :: 2]:
        assert WAYS[name](drafting(rule, LENGTH), greedy()) == without_drafts(0.0), name


@either_rule
def test_greedy_tokens_survive_any_draft_length(rule: Rule) -> None:
    for draft_length in DRAFT_LENGTHS:
        told = Told(drafting(rule, draft_length), greedy())
        assert told == without_drafts(0.0)
        assert bool(told.num_drafts_held) == bool(draft_length)


@either_rule
def test_greedy_tokens_survive_any_verify_lengths(rule: Rule) -> None:
    for setup in with_lengths_that_vary(rule):
        told = Told(setup, greedy())
        assert told == without_drafts(0.0)
        assert len(told.verify_lengths) > 2


@either_rule
def test_greedy_tokens_survive_preemption(rule: Rule) -> None:
    told = Told(short_of_memory(drafting(rule, LENGTH)), greedy())
    assert told == without_drafts(0.0)
    assert told.num_preemptions


def test_rejection_at_one_length_survives_any_batch_any_chunks_and_overlap() -> None:
    for name, way in WAYS.items():
        told = way(drafting("rejection", LENGTH), sampled())
        assert told == at_fixed_length(), name
        assert told.verify_lengths == {1 + LENGTH}
        assert not told.num_preemptions


def test_rejection_at_another_length_says_something_else() -> None:
    texts = [Told(drafting("rejection", draft_length), sampled()).said for draft_length in DRAFT_LENGTHS]
    assert texts[LENGTH] == at_fixed_length().said
    for one, mine in enumerate(texts):
        assert all(mine[0] != theirs[0] for theirs in texts[:one])


def test_at_a_fixed_length_every_step_verifies_all_drafts() -> None:
    """So nothing is there to vary, with little memory and where drafts are worth nothing, too."""
    assert at_fixed_length().verify_lengths == {1 + LENGTH}
    assert Told(short_of_memory(drafting("rejection", LENGTH)), sampled()).verify_lengths == {1 + LENGTH}


def test_rejection_after_preemption_says_something_else() -> None:
    told = Told(short_of_memory(drafting("rejection", LENGTH)), sampled())
    assert told.num_preemptions
    assert told.num_differing(at_fixed_length())


def test_rejection_with_lengths_that_vary_depends_on_the_batch() -> None:
    """The same request alone and in two batches. Each of them says the same when it is served once more."""
    one, others = sampled()[:1], neighbours(7, "greedy")
    alone, together = Told(varying("rejection"), one), among(varying("rejection"), one, others)
    among_others = among(varying("rejection"), one, neighbours(7, "greedy", number=1))
    texts = {told.said[0].token_ids for told in (alone, together, among_others)}
    assert len(texts) > 1
    assert among(varying("rejection"), one, others) == together


def test_rejection_with_lengths_that_vary_depends_on_the_draft_length() -> None:
    first = sampled()[:1]
    assert len({Told(varying("rejection", length), first).said[0].token_ids for length in (1, 3, 5)}) > 1


def test_rejection_with_lengths_that_vary_depends_on_the_lengths() -> None:
    plans = (3, 1, 6, 2), (2, 6, 1, 4, 3), (6,)
    assert len({Told(planned("rejection", *plan), sampled()[:1]).said[0].token_ids for plan in plans}) > 1


def test_rejection_with_lengths_that_vary_depends_on_preemption() -> None:
    plan = planned("rejection", 3, 1, 6, 2)
    enough, too_little = Told(plan, sampled()), Told(short_of_memory(plan), sampled())
    assert too_little.num_preemptions
    assert too_little.num_differing(enough)


@pytest.mark.parametrize("draft_length", DRAFT_LENGTHS)
def test_coupled_tokens_survive_any_batch_any_chunks_and_overlap(draft_length: int) -> None:
    """Every sixth way for each length, so that each way has one; the soak run has all pairs."""
    for name in list(WAYS)[draft_length::6]:
        assert WAYS[name](drafting("coupled", draft_length), sampled()) == without_drafts(None), name


def test_coupled_tokens_survive_any_draft_length() -> None:
    for draft_length in DRAFT_LENGTHS:
        told = Told(drafting("coupled", draft_length, is_async=draft_length % 2 == 1), sampled())
        assert told == without_drafts(None)
        assert bool(told.num_drafts_held) == bool(draft_length)


def test_coupled_tokens_survive_any_verify_lengths() -> None:
    for setup in with_lengths_that_vary("coupled"):
        told = Told(setup, sampled())
        assert told == without_drafts(None)
        assert len(told.verify_lengths) > 2
    in_company = among(varying("coupled", is_async=True), sampled(), neighbours(9, "mixed"))
    assert in_company == without_drafts(None)


def test_coupled_tokens_survive_preemption() -> None:
    for draft_length in DRAFT_LENGTHS:
        told = Told(short_of_memory(drafting("coupled", draft_length, is_async=draft_length % 2 == 0)), sampled())
        assert told == without_drafts(None)
        assert told.num_preemptions
    both = Told(short_of_memory(varying("coupled", 5, is_async=True)), sampled())
    assert both == without_drafts(None)
    assert both.num_preemptions
