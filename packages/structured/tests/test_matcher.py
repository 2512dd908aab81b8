"""Matchers accept, mask and go back as one that feeds all of its tokens again would."""

from __future__ import annotations

import numpy as np
import pytest
from matcher_testing.masks import allowed
from matcher_testing.vocabularies import golden_info, golden_vocabulary
from matcher_testing.walks import walk_and_go_back

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured import GrammarMatcher, compile_grammar

END, THINK_END, A, B, DASH, ONE = 1, 4, 38, 39, 18, 22
SIZE = 128


def matcher_of(
    regex: str = "[A-C]{2}-[0-9]*", *trigger: int, bound: int | None = None, **options: int
) -> GrammarMatcher:
    return GrammarMatcher(compile_grammar(GrammarSpec.regex(regex), golden_info()), trigger, bound, **options)


@pytest.mark.parametrize("first_seed", range(0, 100, 10))
def test_random_walks_restore_every_earlier_state(first_seed: int) -> None:
    assert sum(walk_and_go_back(seed) for seed in range(first_seed, first_seed + 10)) > 10


def test_a_rejected_token_changes_nothing() -> None:
    matcher = matcher_of()
    assert matcher.accept(A)
    before = allowed(matcher, SIZE)
    for token_id in (DASH, END, -1, SIZE, 2**32 + A, -(2**40), 2**70):
        assert not matcher.accept(token_id)
        assert allowed(matcher, SIZE) == before
    assert matcher.accept(B)


def test_ids_outside_of_the_vocabulary_are_rejected_in_free_text_and_after_the_end_too() -> None:
    free, finished = matcher_of("A", THINK_END), matcher_of("A")
    assert finished.accept(A)
    assert finished.accept(END)
    for matcher in (free, finished):
        assert not matcher.accept(-1)
        assert not matcher.accept(SIZE)
        assert matcher.accept(SIZE - 1)


def test_the_end_token_is_allowed_where_the_text_may_end_and_forced_where_it_must() -> None:
    matcher = matcher_of("AB?")
    assert END not in allowed(matcher, SIZE)
    assert matcher.accept(A)
    assert set(allowed(matcher, SIZE)) == {B, END}
    assert matcher.accept(B)
    assert allowed(matcher, SIZE) == [END]


def test_after_the_end_everything_is_allowed_and_the_matcher_is_free() -> None:
    matcher = matcher_of("A")
    assert matcher.accept(A)
    assert matcher.accept(END)
    assert matcher.is_finished
    assert not matcher.is_constrained
    assert allowed(matcher, SIZE) == list(range(SIZE))
    assert matcher.accept(DASH)
    assert matcher.accept(END)


def test_an_end_token_in_free_text_is_nothing_special() -> None:
    matcher = matcher_of("A", THINK_END)
    assert matcher.accept(END)
    assert not matcher.is_finished
    assert not matcher.is_constrained
    assert allowed(matcher, SIZE) == list(range(SIZE))


def test_going_back_over_the_end_and_the_trigger_at_once() -> None:
    matcher = matcher_of("A", THINK_END, bound=3)
    for token_id in (B, 3, THINK_END, A, END, DASH, DASH):
        assert matcher.accept(token_id)
    assert (matcher.tokens_after_end, matcher.tokens_after_bound) == (2, 3)
    matcher.rollback(6)
    assert not matcher.is_finished
    assert not matcher.is_constrained
    assert (matcher.trigger_progress, matcher.tokens_after_bound, matcher.tokens_after_end) == (0, -1, -1)
    for token_id in (THINK_END, A, END):
        assert matcher.accept(token_id)


def test_going_back_to_the_end_token_leaves_it_accepted() -> None:
    matcher = matcher_of("A")
    for token_id in (A, END, DASH, DASH):
        matcher.accept(token_id)
    matcher.rollback(2)
    assert matcher.tokens_after_end == 0
    matcher.rollback(0)
    assert matcher.is_finished
    matcher.rollback(1)
    assert allowed(matcher, SIZE) == [END]


def test_with_a_trigger_more_than_is_kept_cannot_be_taken_back() -> None:
    matcher = matcher_of("[A-C]{9}", THINK_END, max_rollback=3)
    for token_id in (B, B, THINK_END, A):
        matcher.accept(token_id)
    with pytest.raises(ValueError, match=r"rollback of 4 tokens; 0 to 3 can be taken back"):
        matcher.rollback(4)
    assert matcher.trigger_progress == 1
    matcher.rollback(3)
    assert matcher.trigger_progress == 0
    with pytest.raises(ValueError, match="0 to 0"):
        matcher.rollback(1)


def test_without_a_trigger_any_number_can_be_taken_back() -> None:
    matcher = matcher_of("[A-C]{200}", max_rollback=3)
    start = allowed(matcher, SIZE)
    for _ in range(150):
        assert matcher.accept(A)
    matcher.rollback(150)
    assert allowed(matcher, SIZE) == start


@pytest.mark.parametrize("trigger", [(), (THINK_END,)])
def test_a_negative_number_of_tokens_is_refused(trigger: tuple[int, ...]) -> None:
    matcher = matcher_of("A", *trigger)
    with pytest.raises(ValueError, match="rollback of -1 tokens"):
        matcher.rollback(-1)


@pytest.mark.parametrize(
    ("trigger", "bound", "message"),
    [
        ((), 3, "bound_token_id is 3 without a trigger"),
        ((SIZE,), None, "token 128 is not one of the 128 tokens"),
        ((4, -1), None, "token -1 is not one of the 128 tokens"),
        ((4,), SIZE, "token 128 is not one of the 128 tokens"),
    ],
)
def test_triggers_that_cannot_appear_are_refused(trigger: tuple[int, ...], bound: int | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        matcher_of("A", *trigger, bound=bound)


def test_fresh_matchers_share_the_grammar_and_nothing_else() -> None:
    matcher = matcher_of("AB", THINK_END, bound=3)
    for token_id in (DASH, 3, THINK_END, A):
        assert matcher.accept(token_id)
    other = matcher.fresh()
    assert (other.trigger_progress, other.tokens_after_bound, other.is_constrained) == (0, -1, False)
    for token_id in (THINK_END, A, B, END):
        assert other.accept(token_id)
    assert allowed(matcher, SIZE) == [B]


WORDS = 4


@pytest.mark.parametrize(
    "bitmask",
    [
        np.zeros((2, WORDS), np.int64),
        np.zeros((2, WORDS), np.uint32),
        np.zeros((2, WORDS - 1), np.int32),
        np.zeros((2, WORDS + 1), np.int32),
        np.zeros(WORDS, np.int32),
        np.zeros((2, 2 * WORDS), np.int32)[:, ::2],
        np.zeros((2, 2 * WORDS), np.int32)[:, :WORDS],
        np.broadcast_to(np.zeros(WORDS, np.int32), (2, WORDS)),
    ],
    ids=["int64", "uint32", "narrow", "wide", "one row", "every other word", "part of each row", "read-only"],
)
def test_a_bitmask_of_another_layout_is_refused(bitmask: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=r"it must be contiguous, writable int32 \[rows, 4\]"):
        matcher_of().fill_bitmask(bitmask, 0)


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_outside_of_the_bitmask_is_refused(row: int) -> None:
    with pytest.raises(ValueError, match=f"row is {row}; the bitmask has 2 rows"):
        matcher_of().fill_bitmask(np.zeros((2, WORDS), np.int32), row)


def test_a_forced_trigger_has_a_mask_of_one_token() -> None:
    for trigger in (0, 31, 32, SIZE - 1):
        matcher = matcher_of("A", trigger, bound=3)
        assert matcher.accept(3)
        assert matcher.is_constrained
        assert allowed(matcher, SIZE) == [trigger]


def test_the_vocabulary_of_these_tests_has_a_last_word_of_padding() -> None:
    assert len(golden_vocabulary().tokens) == 123
    assert max(allowed(matcher_of("(.|\n)*"), SIZE)) == 122
