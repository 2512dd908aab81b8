"""Sampling parameters against a vocabulary, and the rows that become of them."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from thalweg.engine.admission import Admission, Limits
from thalweg.engine.row_maker import RowMaker
from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import ConfigError, RequestError, SamplingParams

VOCAB, EOS = 512, 1


@pytest.fixture
def maker(tokenizer: Tokenizer) -> RowMaker:
    return RowMaker(tokenizer, VOCAB)


def rows(tokenizer: Tokenizer, params: SamplingParams, engine_seed: int = 0) -> list[SamplingRow]:
    admission = Admission(tokenizer, Limits(VOCAB, 64, 8, 10), engine_seed)
    return [output.sampling for output in admission.admit("r", [5], params).outputs]


def words(maker: RowMaker, *bad_words: str) -> tuple[tuple[int, ...], ...]:
    return maker.row(SamplingParams(bad_words=bad_words)).bad_words


def test_the_defaults_make_a_row_that_changes_nothing(maker: RowMaker) -> None:
    row = maker.row(SamplingParams())
    assert (row.temperature, row.top_p, row.top_k, row.min_p, row.min_tokens) == (1.0, 1.0, -1, 0.0, 0)
    assert not row.has_penalties
    assert (row.bias_ids.size, row.biases.size, row.forced_ids.size, row.bad_words) == (0, 0, 0, ())
    assert (row.num_logprobs, row.num_prompt_logprobs, row.eos_token_id) == (None, None, EOS)
    assert row.forbidden_ids.tolist() == [EOS]


def test_every_option_reaches_its_row(maker: RowMaker) -> None:
    row = maker.row(
        SamplingParams(
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.05,
            min_tokens=3,
            stop_token_ids=(9, 4, 9),
            presence_penalty=-1,
            frequency_penalty=0.25,
            repetition_penalty=1.5,
            logit_bias={8: -100, 2: 0.5},
            logprobs=0,
            prompt_logprobs=5,
            forced_token_ids=(-1, 6),
        )
    )
    assert (row.temperature, row.top_p, row.top_k, row.min_p, row.min_tokens) == (0.5, 0.9, 7, 0.05, 3)
    assert row.forbidden_ids.tolist() == [EOS, 4, 9]
    assert (row.presence_penalty, row.frequency_penalty, row.repetition_penalty) == (-1, 0.25, 1.5)
    assert (row.bias_ids.tolist(), row.biases.tolist()) == ([2, 8], [0.5, -100.0])
    assert (row.num_logprobs, row.num_prompt_logprobs) == (0, 5)
    assert row.forced_ids.tolist() == [-1, 6]
    assert (row.bias_ids.dtype, row.biases.dtype, row.forced_ids.dtype) == (np.int64, np.float32, np.int32)


def test_an_ignored_end_of_sequence_neither_ends_nor_is_kept_away(maker: RowMaker) -> None:
    row = maker.row(SamplingParams(ignore_eos=True, stop_token_ids=(4,)))
    assert (row.eos_token_id, row.forbidden_ids.tolist()) == (-1, [4])


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 2])
def test_outputs_count_their_seeds_up_from_that_of_the_request(tokenizer: Tokenizer, seed: int) -> None:
    several = rows(tokenizer, SamplingParams(n=5, seed=seed))
    assert [row.seed for row in several] == [(seed + index) % 2**64 for index in range(5)]
    assert all(row.top_p == several[0].top_p for row in several)


def test_a_row_with_another_seed_is_the_row_that_is_made_with_it(maker: RowMaker) -> None:
    row = maker.row(SamplingParams(seed=3, top_k=9, bad_words=("ab",), repetition_penalty=1.5))
    other, made = row.with_seed(2**64 - 1), dataclasses.replace(row, seed=2**64 - 1)
    assert (other.seed, other.packed) == (made.seed, made.packed)
    assert other.packed != row.packed
    assert row.seed != other.seed
    assert other.bad_word_table is row.bad_word_table


def test_outputs_without_a_seed_count_up_from_the_drawn_one(tokenizer: Tokenizer) -> None:
    drawn = rows(tokenizer, SamplingParams(), engine_seed=3)[0].seed
    several = rows(tokenizer, SamplingParams(n=3), engine_seed=3)
    assert [row.seed for row in several] == [(drawn + index) % 2**64 for index in range(3)]


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("temperature", 10**400, np.finfo(np.float32).max),
        ("temperature", 1e308, np.finfo(np.float32).max),
        ("top_p", 5e-324, np.finfo(np.float32).tiny),
        ("repetition_penalty", 10**400, 2.0**100),
        ("repetition_penalty", 5e-324, 2.0**-100),
    ],
)
def test_numbers_beyond_float32_become_the_last_ones_of_use(
    maker: RowMaker, name: str, given: Any, kept: float
) -> None:
    value = getattr(maker.row(SamplingParams(**{name: given})), name)
    assert value == kept
    assert math.isfinite(np.float32(value))
    assert np.float32(value) > 0


def test_extreme_penalties_and_temperatures_leave_logits_finite(maker: RowMaker) -> None:
    row = maker.row(SamplingParams(repetition_penalty=1e300, temperature=1e-5))
    logit = np.float32(-200) * np.float32(row.repetition_penalty) * np.float32(1 / row.temperature)
    assert np.isfinite(logit)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_token_ids": (3, VOCAB)}, f"stop_token_ids contains {VOCAB}; it must be in 0..{VOCAB - 1}"),
        ({"stop_token_ids": (10**5000,)}, "stop_token_ids contains an integer of 16610 bits"),
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias contains {VOCAB}; it must be in 0..{VOCAB - 1}"),
        ({"logit_bias": {2**70: 1.0}}, f"logit_bias contains {2**70}"),
        ({"forced_token_ids": (-1, VOCAB)}, f"forced_token_ids contains {VOCAB}; it must be in 0..{VOCAB - 1}"),
        ({"forced_token_ids": (2**31,)}, f"forced_token_ids contains {2**31}"),
        ({"logprobs": VOCAB + 1}, f"logprobs is {VOCAB + 1}; the vocabulary has {VOCAB} tokens"),
        ({"prompt_logprobs": 1000}, f"prompt_logprobs is 1000; the vocabulary has {VOCAB} tokens"),
        (
            {"forced_token_ids": (-1, EOS), "min_tokens": 2},
            f"forced_token_ids makes token 2 of the output {EOS}, the end of sequence, and min_tokens is 2",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_what_the_vocabulary_does_not_allow_names_the_field(
    maker: RowMaker, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        maker.row(SamplingParams(**values))


@pytest.mark.parametrize(
    "changed", [{-1: 5.0}, {-1 - VOCAB: 5.0}, {3: math.nan}, {3: -math.inf}, {3: "x"}, {3.5: 1.0}, {3: 10**30}]
)
def test_biases_that_were_changed_after_their_check_are_checked_again(tokenizer: Tokenizer, changed: Any) -> None:
    params = SamplingParams(logit_bias={3: 1.0})
    params.logit_bias.update(changed)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="logit_bias"):
        rows(tokenizer, params)


def test_biases_that_change_after_a_request_was_let_in_do_not_change_it(tokenizer: Tokenizer) -> None:
    params = SamplingParams(logit_bias={3: 1.0})
    admission = Admission(tokenizer, Limits(VOCAB, 64, 8, 10), 0)
    request = admission.admit("r", [5], params)
    params.logit_bias.update({3: 2.0, 4: 1.0})  # type: ignore[union-attr]
    assert request.outputs[0].sampling.biases.tolist() == [1.0]
    assert request.params.logit_bias == {3: 1.0}


def test_the_last_id_and_as_many_logprobs_as_tokens_are_accepted(maker: RowMaker) -> None:
    last = VOCAB - 1
    row = maker.row(
        SamplingParams(
            stop_token_ids=(last,),
            logit_bias={last: 1},
            forced_token_ids=(last,),
            logprobs=VOCAB,
            prompt_logprobs=VOCAB,
        )
    )
    assert (row.num_logprobs, row.forced_ids.tolist()) == (VOCAB, [last])


def test_an_end_may_be_forced_after_the_minimum_or_where_it_is_ignored(maker: RowMaker) -> None:
    maker.row(SamplingParams(forced_token_ids=(-1, EOS), min_tokens=1))
    maker.row(SamplingParams(forced_token_ids=(EOS,), min_tokens=1, ignore_eos=True))


def test_a_bad_word_is_its_tokens_as_it_is_and_after_a_space(maker: RowMaker, tokenizer: Tokenizer) -> None:
    plain, spaced = (tuple(tokenizer.encode(text, add_bos=False)) for text in ("river", " river"))
    assert plain != spaced
    assert words(maker, "river") == (plain, spaced)
    assert words(maker, " river") == (spaced,)
    assert words(maker, "river", " river", "river") == (plain, spaced)
    assert all(tokenizer.bos_token_id not in word for word in words(maker, "river", "谷底", "a b"))


def test_a_bad_word_that_has_no_tokens_of_the_model_is_refused(tokenizer: Tokenizer) -> None:
    last = max(tokenizer.encode("river", add_bos=False))
    with pytest.raises(RequestError, match=r"bad_words contains 'river', whose token ids are \["):
        RowMaker(tokenizer, last).row(SamplingParams(bad_words=("river",)))


def test_a_bad_word_may_spell_a_control_token(maker: RowMaker) -> None:
    assert (EOS,) in words(maker, "<｜end▁of▁sentence｜>")  # noqa: RUF001


@pytest.mark.parametrize(
    ("blacklist", "message"),
    [
        ((3, VOCAB), f"token_blacklist contains {VOCAB}; the model has token ids 0..{VOCAB - 1}"),
        (range(VOCAB), "all 512"),
    ],
    ids=["outside", "everything"],
)
def test_a_blacklist_that_does_not_fit_the_vocabulary_is_refused_at_the_start(
    tokenizer: Tokenizer, blacklist: Iterable[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Admission(tokenizer, Limits(VOCAB, 64, 8, 10, tuple(blacklist)), seed=0)


def test_a_request_for_which_no_token_is_left_is_refused(tokenizer: Tokenizer, maker: RowMaker) -> None:
    everything = tuple(range(VOCAB))
    maker.row(SamplingParams(stop_token_ids=everything))
    with pytest.raises(RequestError, match="every token is a stop while min_tokens is 1; no token could be drawn"):
        maker.row(SamplingParams(stop_token_ids=everything, min_tokens=1))
    strict = RowMaker(tokenizer, VOCAB, range(2, VOCAB))
    strict.row(SamplingParams(min_tokens=1))
    strict.row(SamplingParams(stop_token_ids=(0,)))
    with pytest.raises(RequestError, match="a stop while min_tokens is 1 or in token_blacklist; no token could"):
        strict.row(SamplingParams(stop_token_ids=(0,), min_tokens=1))
    both = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")  # noqa: RUF001
    with pytest.raises(RequestError, match="every token is in bad_words or in token_blacklist; no token could"):
        strict.row(SamplingParams(bad_words=both))


def test_equal_lists_of_stop_strings_are_built_once_while_they_are_in_use(tokenizer: Tokenizer) -> None:
    admission = Admission(tokenizer, Limits(VOCAB, 64, 8, 10), seed=0)
    stop = tuple(f"stop {index}" for index in range(1000))
    first, second = (admission.admit("r", [5], SamplingParams(n=2, stop=list(stop))) for _ in range(2))
    shared = {id(output.stop_checker._stop) for request in (first, second) for output in request.outputs}
    assert len(shared) == 1
    other = admission.admit("r", [5], SamplingParams(stop=stop[:1]))
    assert other.outputs[0].stop_checker._stop.strings == stop[:1]
