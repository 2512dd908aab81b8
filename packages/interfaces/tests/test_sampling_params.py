import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from thalweg.interfaces import ConfigError, GrammarSpec, SamplingParams

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sampling_params.json").read_text())

# Where we decided otherwise than the recorded system; everything else must agree with it.
DELIBERATE_DIFFERENCES = {
    "max_tokens 0": "an error, not silently 1",
    "top_logprobs": "None is the default, and no other value is supported yet",
    "prompt_logprobs": "a number of alternatives or None, not a bool; not supported yet",
    "first_n_token_no_eos": "spelled min_tokens, so the old name is an unknown option",
    "greedy": "temperature, top_p and top_k stay as given; is_greedy says what they mean",
}


def difference(given: dict[str, Any]) -> str | None:
    if given.get("max_tokens") == 0:
        return "max_tokens 0"
    for name in ("first_n_token_no_eos", "prompt_logprobs", "top_logprobs"):
        if given.get(name):
            return name
    return None


def parse_seed(given: dict[str, Any]) -> dict[str, Any]:
    seed = given.get("seq_seed")
    return {**given, "seq_seed": int(seed)} if seed not in (None, "x") else given


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: json.dumps(case["input"]))
def test_recorded_parameters_give_the_recorded_values_or_error(case: dict[str, Any]) -> None:
    given = parse_seed(case["input"])
    reason = difference(case["input"])
    if reason is not None:
        assert reason in DELIBERATE_DIFFERENCES
        with pytest.raises(ConfigError, match=reason.split()[0].removeprefix("top_")):
            SamplingParams.from_dict(given)
        return
    if not case["ok"]:
        with pytest.raises({"ValueError": ValueError, "TypeError": TypeError}[case["error_type"]]):
            SamplingParams.from_dict(given)
        return
    params = SamplingParams.from_dict(given)
    is_greedy = case["temperature"] == 1e-5 and case["input"]["temperature"] < 1e-5
    assert params.is_greedy == is_greedy
    assert params.max_tokens == case["max_tokens"]
    assert params.seed == (None if "seq_seed" not in given else int(case["seq_seed"]))
    if not is_greedy:
        assert (params.temperature, params.top_p, params.top_k) == (case["temperature"], case["top_p"], case["top_k"])


def test_every_deliberate_difference_is_exercised() -> None:
    assert {difference(case["input"]) for case in GOLDEN} - {None} == set(DELIBERATE_DIFFERENCES) - {"greedy"}


def test_the_defaults_are_the_documented_ones() -> None:
    params = SamplingParams()
    assert {field.name: getattr(params, field.name) for field in dataclasses.fields(params)} == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "seed": None,
        "max_tokens": 16,
        "min_tokens": 0,
        "stop": (),
        "stop_token_ids": (),
        "ignore_eos": False,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "bad_words": (),
        "logprobs": None,
        "prompt_logprobs": None,
        "structured": None,
        "forced_token_ids": None,
    }
    assert not params.is_greedy


BAD_VALUES: list[tuple[str, Any]] = [
    *(("temperature", value) for value in (-0.1, math.nan, math.inf, -math.inf, "1", None, True, [1.0], 1j)),
    *(("top_p", value) for value in (0, 0.0, -1, 1.0001, math.nan, "0.5", None, True)),
    *(("top_k", value) for value in (0, -2, 2**31, 5.0, "5", None, True)),
    *(("max_tokens", value) for value in (0, -1, 2**31, 16.0, "16", None, True)),
    *(("min_tokens", value) for value in (-1, 17, 1.0, "1", None, False)),
    *(("logprobs", value) for value in (-1, 1001, 1.0, "1", True)),
    *(("prompt_logprobs", value) for value in (-1, 1001, 1.0, "1", True)),
    *(("ignore_eos", value) for value in (1, "yes", None)),
    *(("stop", value) for value in ("", [""], ["a", ""], [1], [b"a"], b"a", 5, None)),
    *(("stop_token_ids", value) for value in ([-1], [1.0], ["1"], [True], 5, None)),
    *(("bad_words", value) for value in (5, None)),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=[f"{name}={value!r}" for name, value in BAD_VALUES])
def test_a_bad_value_is_a_config_error_that_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})


def test_a_huge_integer_is_a_legal_temperature() -> None:
    assert SamplingParams(temperature=10**400).temperature == 10**400


NOT_YET: dict[str, Any] = {
    "n": 2,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {3: 1.0},
    "bad_words": ("no",),
    "logprobs": 0,
    "prompt_logprobs": 5,
    "structured": GrammarSpec("regex", "a+"),
    "forced_token_ids": (1, 2),
}


@pytest.mark.parametrize("name", NOT_YET)
def test_a_feature_that_does_not_exist_yet_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is .*this version supports only"):
        SamplingParams(**{name: NOT_YET[name]})


@pytest.mark.parametrize("seed", [1.0, "7", True, [1]])
def test_a_seed_of_another_type_is_a_type_error(seed: Any) -> None:
    with pytest.raises(TypeError, match=r"seed is .* must be an int or None"):
        SamplingParams(seed=seed)


@pytest.mark.parametrize(("seed", "kept"), [(0, 0), (-1, 2**64 - 1), (2**64, 0), (2**64 + 5, 5), (2**63, 2**63)])
def test_seeds_are_reduced_to_64_bits(seed: int, kept: int) -> None:
    assert SamplingParams(seed=seed).seed == kept


def test_stops_are_normalised_to_tuples() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[3, 4])  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (3, 4))


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0, True), (0.0, True), (9.9e-6, True), (1e-5, False)])
def test_greedy_begins_below_ten_to_the_minus_five(temperature: float, is_greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy == is_greedy


def test_a_mapping_understands_both_spellings_and_drops_none() -> None:
    params = SamplingParams.from_dict({"seq_seed": 7, "top_k": None, "top_logprobs": None, "stop": "x"})
    assert params == SamplingParams(seed=7, stop=("x",))


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("seed", "seq_seed"),
        ("logprobs", "top_logprobs"),
        ("structured", "so_args"),
        ("forced_token_ids", "golden_token_ids"),
    ],
)
def test_both_spellings_of_one_field_are_an_error(name: str, alias: str) -> None:
    for values in ({name: 1, alias: 1}, {alias: 1, name: 1}):
        with pytest.raises(ConfigError, match=f"{name} is given twice"):
            SamplingParams.from_dict(values)


def test_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown sampling option 'temprature'; known are .*temperature"):
        SamplingParams.from_dict({"temprature": 0.5})


def test_params_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = 3  # type: ignore[misc]
