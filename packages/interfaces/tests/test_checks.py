"""Comparing and showing values that a caller may have given for anything."""

import pytest

from thalweg.interfaces import ConfigError, ParallelConfig, SamplingParams, is_same, shown

HUGE = 10**5000


class Array:
    """Compares as numpy's arrays do: with one answer per element."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __eq__(self, other: object) -> "Array":  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        if self.shape not in ((), (1,)):
            raise ValueError("ambiguous")
        return True

    __hash__ = None  # type: ignore[assignment]


class Hostile:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __hash__ = None  # type: ignore[assignment]


def type_name(value: object) -> str:
    return type(value).__name__


def test_values_are_the_same_only_when_one_answer_says_so() -> None:
    assert is_same(1, 1)
    assert is_same("a", "a")
    assert is_same(Array(), 0.5)
    assert is_same(None, None)
    for value in (2, "1", None, Array(1), Array(3), Array(0), Hostile()):
        assert not is_same(value, 1)


def test_values_are_shown_as_they_are_unless_that_is_impossible_or_long() -> None:
    assert shown("a\n") == "'a\\n'"
    assert shown([1, None]) == "[1, None]"
    assert shown(HUGE) == "an integer of 16610 bits"
    assert shown([HUGE]) == "a list that cannot be printed"
    assert shown(Hostile()) == "a Hostile that cannot be printed"
    assert len(shown("x" * 10_000)) == 400
    assert shown("x" * 10_000).endswith("xxx'")


@pytest.mark.parametrize("value", [HUGE, -HUGE, [HUGE], Hostile(), Array(3), Array(0), Array(1)], ids=type_name)
@pytest.mark.parametrize(
    "name",
    [
        "n",
        "min_p",
        "top_k",
        "max_tokens",
        "min_tokens",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "prompt_logprobs",
        "ignore_eos",
    ],
)
def test_no_value_makes_the_check_of_a_sampling_option_fail_itself(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is .*; "):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-HUGE, [HUGE], Hostile(), Array(3), Array(1)], ids=type_name)
@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words", "logit_bias", "forced_token_ids"])
def test_no_value_inside_a_collection_makes_its_check_fail_itself(name: str, value: object) -> None:
    inside = {1: value} if name == "logit_bias" else [value]
    with pytest.raises(ConfigError, match=rf"^{name}(\[1\])? (is|contains) .*; "):
        SamplingParams(**{name: inside})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [HUGE, Hostile(), Array(3), 2, "1"], ids=type_name)
def test_no_value_makes_the_check_of_a_group_size_fail_itself(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^data_parallel_size is .*; this version"):
        ParallelConfig(data=value)  # type: ignore[arg-type]
