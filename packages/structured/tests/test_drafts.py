"""Masks of a step: a row for the newest token and one after each draft that is allowed, failures for one walk alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from matcher_testing.masks import allowed, tokens_of
from matcher_testing.steps import check_steps
from matcher_testing.vocabularies import golden_info, golden_vocabulary
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError, DraftWalk, FilledMasks, GrammarSpec
from thalweg.structured import BatchFiller, GrammarMatcher, Vocabulary, compile_grammar

END, THINK_END, A, B, C, DASH, ONE, MINUS_ONE = 1, 4, 38, 39, 40, 18, 22, 112
BOS = 0
WORDS, SIZE = 4, 128


def matcher_of(regex: str = "[A-C]{2}-[0-9]*", *trigger: int, bound: int | None = None) -> GrammarMatcher:
    return GrammarMatcher(compile_grammar(GrammarSpec.regex(regex), golden_info()), trigger, bound)


def fill(
    *walks: DraftWalk, rows: int = 12, filler: BatchFiller | None = None
) -> tuple[FilledMasks, dict[int, list[int]]]:
    """What came of them, and the tokens of each filled row."""
    bitmask = np.zeros((12, WORDS), np.int32)
    filled = (filler or BatchFiller()).fill(walks, bitmask)
    return filled, {row: tokens_of(bitmask[row], SIZE) for row in np.flatnonzero(filled.is_filled).tolist()}


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_random_steps_fill_what_the_definition_says(seed: int, num_threads: int) -> None:
    assert check_steps(seed, BatchFiller(num_threads)) > 5


def test_every_draft_that_is_allowed_has_a_mask_behind_it() -> None:
    matcher = matcher_of()
    filled, masks = fill(DraftWalk(matcher, [A], [B, DASH, ONE], 2))
    assert not filled.failures
    assert list(masks) == [2, 3, 4, 5]
    assert (masks[2], DASH in masks[3], END in masks[4], B in masks[4]) == ([A, B, C], True, True, False)


def test_committed_tokens_stay_and_drafts_are_taken_back() -> None:
    matcher = matcher_of()
    fill(DraftWalk(matcher, [A, B], [DASH, ONE], 0))
    assert allowed(matcher, SIZE) == [DASH, MINUS_ONE]


@pytest.mark.parametrize("draft_id", [DASH, END, BOS, -1, SIZE, 2**40, SIZE - 1])
def test_the_first_draft_that_is_not_allowed_ends_the_walk(draft_id: int) -> None:
    matcher = matcher_of()
    filled, masks = fill(DraftWalk(matcher, [], [A, draft_id, B, DASH], 0))
    assert list(masks) == [0, 1]
    assert not filled.failures
    assert A in allowed(matcher, SIZE)


def test_illegal_drafts_leave_no_word_on_the_error_stream(capfd: pytest.CaptureFixture[str]) -> None:
    info = Vocabulary((b"<bos>", b"<eos>", b"a"), 4, 1, frozenset({0})).tokenizer_info()
    compiled = compile_grammar(GrammarSpec.regex("a*"), info)
    for trigger in ((), (2,)):
        matcher = GrammarMatcher(compiled, trigger)
        for draft_id in (0, 3, 99, -5):
            BatchFiller().fill([DraftWalk(matcher, [], [2, draft_id], 0)], np.zeros((3, 1), np.int32))
    assert capfd.readouterr() == ("", "")


def test_rows_after_an_end_token_are_free() -> None:
    matcher = matcher_of("AB")
    _, masks = fill(DraftWalk(matcher, [A], [B, END, DASH, END], 0))
    assert masks == {0: [B], 1: [END]}
    assert fill(DraftWalk(matcher, [B, END, DASH], [A, A], 0))[1] == {}
    assert matcher.is_finished


def test_rows_before_the_trigger_are_free_and_drafts_may_complete_it() -> None:
    matcher = matcher_of("AB", THINK_END)
    _, masks = fill(DraftWalk(matcher, [DASH], [C, THINK_END, A, END], 3))
    assert masks == {5: [A, golden_vocabulary().tokens.index(b"AB")], 6: [B]}
    assert matcher.trigger_progress == 0


def test_a_forced_trigger_is_masked_token_by_token() -> None:
    matcher = matcher_of("AB", 40, 41, bound=3)
    _, masks = fill(DraftWalk(matcher, [], [3, 40, 41, A], 0))
    assert (masks[1], masks[2], masks[4]) == ([40], [41], [B])
    assert 0 not in masks


def test_a_committed_token_that_is_not_allowed_fails_its_walk_alone() -> None:
    good, bad = matcher_of(), matcher_of()
    filled, masks = fill(DraftWalk(bad, [A, DASH], [B], 0), DraftWalk(good, [A], [B], 2))
    assert filled.failures == {0: f"token {DASH} is not allowed by the grammar after 1 tokens"}
    assert list(masks) == [2, 3]


def test_a_committed_token_against_a_forced_trigger_is_told_so() -> None:
    filled, _ = fill(DraftWalk(matcher_of("A", 40, 41, bound=3), [3, 41], [], 0))
    assert filled.failures == {0: "token 41 is not allowed by the trigger, which goes on with token 40"}


def test_a_committed_token_outside_of_the_vocabulary_is_told_so() -> None:
    filled, _ = fill(DraftWalk(matcher_of(), [SIZE], [], 0))
    assert filled.failures == {0: "token 128 is not allowed by the vocabulary of 128"}


def test_a_matcher_that_failed_is_out_of_service() -> None:
    filler, matcher = BatchFiller(), matcher_of()
    first, _ = fill(DraftWalk(matcher, [DASH], [], 0), filler=filler)
    again, masks = fill(DraftWalk(matcher, [A], [], 0), DraftWalk(matcher.fresh(), [A], [], 1), filler=filler)
    assert again.failures == first.failures
    assert list(masks) == [1]


class Broken:
    """Fails at its second mask."""

    def __init__(self) -> None:
        self.num_masks = 0
        self.is_constrained = True
        self.is_finished = False
        self.num_accepted = 0

    def accept(self, token_id: int) -> bool:
        self.num_accepted += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        self.num_accepted -= num_tokens

    def fill_bitmask(self, bitmask: np.ndarray, row: int) -> None:  # type: ignore[type-arg]
        bitmask[row] = -1
        self.num_masks += 1
        if self.num_masks == 2:
            raise MemoryError("no more")

    def fresh(self) -> Broken:
        return Broken()


def test_an_exception_fails_its_walk_alone_and_for_good(caplog: pytest.LogCaptureFixture) -> None:
    filler, broken, good = BatchFiller(), Broken(), matcher_of()
    walks = [DraftWalk(good, [A], [B], 0), DraftWalk(broken, [], [5, 6], 2), DraftWalk(good.fresh(), [], [], 5)]
    for _ in range(2):
        filled, masks = fill(*walks, filler=filler)
        assert filled.failures == {1: "the matcher failed: MemoryError('no more')"}
        assert list(masks) == [0, 1, 5]
        walks[0] = DraftWalk(good, [], [B], 0)
    assert broken.num_accepted == 0
    assert len(caplog.records) == 1


def test_drafts_that_are_no_integers_of_64_bits_fail_their_walk_alone() -> None:
    filled, masks = fill(DraftWalk(matcher_of(), [], [2**70], 0), DraftWalk(matcher_of(), [], [], 2))
    assert list(filled.failures) == [0]
    assert list(masks) == [2]


def test_an_exception_of_the_library_fails_its_walk_alone() -> None:
    good, bad = matcher_of(), matcher_of()
    bad.grammar.accept_token(A)
    bad.grammar.accept_token(B)
    bad.grammar.accept_token(DASH)
    bad.grammar.accept_token(END)  # behind the matcher's back: the library has no mask any more
    for num_threads in (1, 2):
        filled, masks = fill(DraftWalk(bad, [], [], 0), DraftWalk(good, [], [A], 1), filler=BatchFiller(num_threads))
        assert list(filled.failures) == [0]
        assert "terminated" in filled.failures[0]
        assert list(masks) == [1, 2]


def test_a_first_row_without_any_token_fails_its_walk() -> None:
    info = Vocabulary((b"", b"a", b"c"), 40, 0).tokenizer_info()
    dead = GrammarMatcher(compile_grammar(GrammarSpec.regex("ab|ac?"), info))
    bitmask = np.zeros((4, 2), np.int32)
    alive = GrammarMatcher(compile_grammar(GrammarSpec.regex("a+"), info))
    stuck = GrammarMatcher(compile_grammar(GrammarSpec.regex("(c|ab)"), info))
    walks = [DraftWalk(dead, [1], [], 0), DraftWalk(stuck, [1], [], 1), DraftWalk(alive, [1], [], 2)]
    filled = BatchFiller().fill(walks, bitmask)
    assert filled.failures == {1: "the grammar allows no token after 1 tokens"}
    assert filled.is_filled.tolist() == [True, False, True, False]


def test_a_large_vocabulary_without_tokens_of_one_byte_is_no_dead_end() -> None:
    tokens = tuple(f"w{number:04}".encode() for number in range(2000))
    matcher = GrammarMatcher(compile_grammar(GrammarSpec.regex("w1999"), Vocabulary(tokens, 2000, 0).tokenizer_info()))
    bitmask = np.zeros((1, 63), np.int32)
    filled = BatchFiller().fill([DraftWalk(matcher, [], [], 0)], bitmask)
    assert filled.is_filled.all()
    assert tokens_of(bitmask[0], 2000) == [1999]


@pytest.mark.parametrize(("first_row", "drafts"), [(-1, []), (12, []), (10, [A, B])])
def test_rows_outside_of_the_bitmask_fail_their_walk(first_row: int, drafts: Sequence[int]) -> None:
    filled, masks = fill(DraftWalk(matcher_of(), [], drafts, first_row), DraftWalk(matcher_of(), [], [], 0))
    assert f"rows {first_row} to" in filled.failures[0]
    assert list(masks) == [0]


def test_a_bitmask_of_another_vocabulary_fails_the_walk() -> None:
    filled = BatchFiller().fill([DraftWalk(matcher_of(), [], [], 0)], np.zeros((1, WORDS + 1), np.int32))
    assert "must be contiguous, writable int32 [rows, 4]" in filled.failures[0]


class Slow(GrammarMatcher):
    """Works for a while at every token, except when told not to."""

    is_slow = True

    def accept(self, token_id: int) -> bool:
        end = time.thread_time() + 0.02 * self.is_slow
        while time.thread_time() < end:
            pass
        return super().accept(token_id)


def slow_matcher() -> Slow:
    return Slow(compile_grammar(GrammarSpec.regex("[A-C]{9}"), golden_info()))


def test_a_walk_that_is_slow_in_two_steps_in_a_row_fails_alone() -> None:
    filler, slow, good = BatchFiller(max_walk_s=0.01), slow_matcher(), matcher_of("[A-C]*")
    filled, masks = fill(DraftWalk(slow, [A], [A], 0), DraftWalk(good, [A], [B], 2), filler=filler)
    assert (filled.failures, list(masks)) == ({}, [0, 1, 2, 3])
    for _ in range(2):  # later, too, and without any work
        filled, masks = fill(DraftWalk(good, [A], [B], 2), DraftWalk(slow, [A], [A], 0), filler=filler)
        assert list(masks) == [2, 3]
        assert list(filled.failures) == [1]
        assert "of the processor in one step; at most 0.01 s are allowed" in filled.failures[1]


def test_a_walk_that_is_slow_now_and_then_goes_on() -> None:
    filler, matcher = BatchFiller(max_walk_s=0.01), slow_matcher()
    for is_slow in (True, False, True, False):
        matcher.is_slow = is_slow
        filled, _ = fill(DraftWalk(matcher, [A], [], 0), filler=filler)
        assert not filled.failures


@pytest.mark.parametrize("num_threads", [1, 2])
def test_masks_are_timed_where_the_library_walks(num_threads: int) -> None:
    filler = BatchFiller(num_threads, max_walk_s=1e-9)
    first, second = matcher_of(), matcher_of()
    assert not fill(DraftWalk(first, [], [A], 0), DraftWalk(second, [], [A], 2), filler=filler)[0].failures
    filled, masks = fill(DraftWalk(first, [], [A], 0), DraftWalk(second, [], [A], 2), filler=filler)
    assert (list(filled.failures), masks) == ([0, 1], {})


@pytest.mark.parametrize("limit", [0, -1.0, True, "1", None, float("nan")])
def test_a_limit_that_is_no_time_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"^max_walk_s is .* must be a number above 0"):
        BatchFiller(max_walk_s=limit)


def test_a_step_without_walks_has_no_rows() -> None:
    filled, masks = fill()
    assert (filled.failures, masks) == ({}, {})
    assert BatchFiller().fill([], np.zeros((0, WORDS), np.int32)).is_filled.shape == (0,)


@pytest.mark.parametrize("num_threads", [0, -1, 1.5, "2", True])
def test_a_number_of_threads_that_is_none_is_refused(num_threads: int) -> None:
    with pytest.raises(ConfigError, match="num_threads is"):
        BatchFiller(num_threads)


class TwoFacedMatcher:
    """Its masks allow a token that it refuses."""

    is_constrained = True
    is_finished = False

    def __init__(self, refused: int) -> None:
        self._refused = refused

    def accept(self, token_id: int) -> bool:
        return token_id != self._refused

    def rollback(self, num_tokens: int) -> None:
        """It has no state."""

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        bitmask[row] = -1

    def fresh(self) -> TwoFacedMatcher:
        return TwoFacedMatcher(self._refused)


@pytest.mark.parametrize("refused", [A, 31, 32, 0])
def test_a_draft_that_is_refused_in_spite_of_its_mask_leaves_the_mask(refused: int) -> None:
    filled, masks = fill(DraftWalk(TwoFacedMatcher(refused), [], [B, refused, C], 0))
    assert list(masks) == [0, 1]
    assert not filled.failures
    assert [token for token in range(SIZE) if token not in masks[1]] == [refused]
    assert masks[0] == list(range(SIZE))
