import dataclasses
import decimal
import json
import math
import types
from pathlib import Path
from typing import Any

import pytest

from thalweg.interfaces import ConfigError, GrammarSpec, SamplingParams

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sampling_params.json").read_text())

# Where we decided otherwise than the recorded system; everything else must agree with it.
DELIBERATE_DIFFERENCES = {
    "max_tokens 0": "an error, not silently 1",
    "greedy": "temperature, top_p and top_k stay as given; is_greedy says what they mean",
}


def difference(given: dict[str, Any]) -> str | None:
    return "max_tokens 0" if given.get("max_tokens") == 0 else None


def parse_seed(given: dict[str, Any]) -> dict[str, Any]:
    seed = given.get("seq_seed")
    return {**given, "seq_seed": int(seed)} if seed not in (None, "x") else given


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: json.dumps(case["input"]))
def test_recorded_parameters_give_the_recorded_values_or_error(case: dict[str, Any]) -> None:
    given = parse_seed(case["input"])
    reason = difference(case["input"])
    if reason is not None:
        assert reason in DELIBERATE_DIFFERENCES
        with pytest.raises(ConfigError, match=reason.split()[0]):
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
    assert params.logprobs == (case["top_logprobs"] if "top_logprobs" in given else None)
    assert params.prompt_logprobs == (0 if given.get("prompt_logprobs") else None)
    assert params.min_tokens == given.get("first_n_token_no_eos", 0)
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
    *(("n", value) for value in (0, -1, 16_385, 1.0, "1", None, True)),
    *(("temperature", value) for value in (-0.1, math.nan, math.inf, -math.inf, "1", None, True, [1.0], 1j)),
    *(("top_p", value) for value in (0, 0.0, -1, 1.0001, math.nan, "0.5", None, True)),
    *(("top_k", value) for value in (0, -2, 2**31, 5.0, -1.0, "5", None, True)),
    *(("min_p", value) for value in (-0.01, 1.01, math.nan, -math.inf, "0", None, False)),
    *(("max_tokens", value) for value in (0, -1, 2**31, 16.0, "16", None, True)),
    *(("min_tokens", value) for value in (-1, 17, 1.0, "1", None, False)),
    *(("presence_penalty", value) for value in (-2.01, 2.01, math.nan, math.inf, "1", None, True)),
    *(("frequency_penalty", value) for value in (-2.01, 2.01, math.nan, -math.inf, "1", None, True)),
    *(("repetition_penalty", value) for value in (0, -1.0, math.nan, math.inf, "1", None, True)),
    *(("logprobs", value) for value in (-1, 1001, 1.0, "1", True)),
    *(("prompt_logprobs", value) for value in (-1, 1001, 1.0, "1", True)),
    *(("ignore_eos", value) for value in (1, "yes", None)),
    *(("stop", value) for value in ("", [""], ["a", ""], [1], [b"a"], b"a", 5, None, "\ud800", {"a": 1})),
    *(("stop_token_ids", value) for value in ([-1], [1.0], ["1"], [True], 5, None, "12", {1: 2}, [None])),
    *(("bad_words", value) for value in (5, None, "", [""], " ", ["a", "\n\t"], [1], b"a", ["a\udfff"], {"a": 1})),
    *(
        ("logit_bias", value)
        for value in (5, "1", [(1, 2.0)], {-1: 1.0}, {1.0: 1.0}, {"1": 1.0}, {True: 1.0}, {None: 1})
    ),
    *(("logit_bias", {7: bias}) for bias in (100.01, -101, math.nan, math.inf, "1", None, True)),
    *(("forced_token_ids", value) for value in ([-2], [1.0], ["1"], [True], 5, "12", b"12", {1: 2}, [None])),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=[f"{name}={value!r}" for name, value in BAD_VALUES])
def test_a_bad_value_is_a_config_error_that_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})


def test_a_huge_integer_is_a_legal_temperature() -> None:
    assert SamplingParams(temperature=10**400).temperature == 10**400


GRAMMAR = GrammarSpec.regex("a+", trigger_token_ids=(7,))


def test_a_constraint_is_taken_as_it_is() -> None:
    assert SamplingParams(structured=GRAMMAR).structured is GRAMMAR


@pytest.mark.parametrize("value", [{"regex": "a"}, "a", 5, True, ()])
def test_a_constraint_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^structured is .*; it must be a GrammarSpec or None"):
        SamplingParams(structured=value)


@pytest.mark.parametrize("key", ["structured", "so_args", "structured_outputs"])
def test_a_mapping_may_hold_a_constraint_as_a_mapping(key: str) -> None:
    values = json.loads(json.dumps({key: {"regex": "a+", "trigger_token_ids": [7]}}))
    assert SamplingParams.from_dict(values) == SamplingParams(structured=GRAMMAR)
    assert SamplingParams.from_dict({key: GRAMMAR}).structured is GRAMMAR
    assert SamplingParams.from_dict({key: None}).structured is None
    with pytest.raises(ConfigError, match=rf"^{key}: kind is not given; give kind and source, or one of json"):
        SamplingParams.from_dict({key: {}})
    with pytest.raises(ConfigError, match=r"^structured is 'a\+'; it must be a GrammarSpec or None"):
        SamplingParams.from_dict({key: "a+"})


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"n": 2, "temperature": 0}, "n is 2 and temperature is 0; .* n must be 1 or temperature at least 1e-5"),
    ({"n": 16_384, "temperature": 9.9e-6}, "n is 16384 and temperature is 9.9e-06"),
    ({"min_tokens": 5, "max_tokens": 4}, r"min_tokens is 5 and max_tokens is 4; min_tokens must be 0..max_tokens"),
    ({"min_tokens": 2**31 - 1}, "min_tokens is 2147483647 and max_tokens is 16"),
    ({"max_tokens": 2, "forced_token_ids": (5, 6, 7)}, "forced_token_ids forces token 3 .* and max_tokens is 2"),
    ({"max_tokens": 1, "forced_token_ids": (-1, -1, 0)}, "forced_token_ids forces token 3 .* and max_tokens is 1"),
    (
        {"min_tokens": 2, "stop_token_ids": (9,), "forced_token_ids": (-1, 9)},
        "forced_token_ids makes token 2 .* 9, which stop_token_ids contains, and min_tokens is 2",
    ),
]


@pytest.mark.parametrize(("values", "message"), CONTRADICTIONS, ids=lambda value: str(value)[:60])
def test_a_contradiction_names_both_fields(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"n": 2, "temperature": 1e-5},
        {"n": 16_384, "forced_token_ids": (1,)},
        {"min_tokens": 4, "max_tokens": 4},
        {"max_tokens": 2, "forced_token_ids": (5, 6, -1, -1)},
        {"min_tokens": 1, "stop_token_ids": (9,), "forced_token_ids": (-1, 9)},
        {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 1},
        {"stop": ("a", "a"), "stop_token_ids": (1, 1), "bad_words": ("b", "b")},
    ],
    ids=str,
)
def test_what_only_looks_like_a_contradiction_is_accepted(values: dict[str, Any]) -> None:
    params = SamplingParams(**values)
    assert {name: getattr(params, name) for name in values} == values


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n", (1, 16_384)),
        ("top_k", (-1, 1, 2**31 - 1)),
        ("min_p", (0, 0.0, 5e-324, 1, 1.0)),
        ("presence_penalty", (-2, 2.0, 0.0)),
        ("frequency_penalty", (-2.0, 2, -0.0)),
        ("repetition_penalty", (5e-324, 1, 1e308, 10**400)),
        ("logit_bias", ({0: -100}, {10**30: 100.0}, {3: 0, 4: -0.5})),
        ("logprobs", (None, 0, 1000)),
        ("prompt_logprobs", (None, 0, 1000)),
        ("forced_token_ids", (None, (-1,), (0, 10**30))),
        ("stop", (("\n",), (" ",), ("谷",))),
        ("bad_words", ((" a",), ("a b\n",))),
    ],
)
def test_the_ends_of_every_range_are_in_it(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{name: value}), name) == value


def test_a_thousand_stop_strings_are_ordinary() -> None:
    stops = tuple(f"stop {index}" for index in range(1000))
    assert SamplingParams(stop=stops).stop == stops
    with pytest.raises(ConfigError, match="stop contains ''"):
        SamplingParams(stop=(*stops, ""))


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


def test_collections_are_kept_as_copies_and_empty_ones_as_none() -> None:
    bias, forced = {3: 1.5}, [4, -1]
    params = SamplingParams(logit_bias=bias, forced_token_ids=forced, bad_words="no")  # type: ignore[arg-type]
    bias[4] = 2.0
    forced.append(5)
    assert (params.logit_bias, params.forced_token_ids, params.bad_words) == ({3: 1.5}, (4, -1), ("no",))
    assert type(SamplingParams(logit_bias=types.MappingProxyType({1: 2})).logit_bias) is dict
    empty = SamplingParams(logit_bias={}, forced_token_ids=(), bad_words=(), stop=[])  # type: ignore[arg-type]
    assert empty == SamplingParams()


class Agreeable(int):
    """A number that is in any range."""

    def __le__(self, other: object) -> bool:
        return True

    __lt__ = __ge__ = __gt__ = __le__


class AgreeableFloat(float):
    def __le__(self, other: object) -> bool:
        return True

    __lt__ = __ge__ = __gt__ = __le__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", Agreeable(-7)),
        ("top_k", Agreeable(0)),
        ("logprobs", Agreeable(2000)),
        ("temperature", AgreeableFloat("nan")),
        ("repetition_penalty", AgreeableFloat("-inf")),
        ("stop_token_ids", [Agreeable(-1)]),
        ("forced_token_ids", [Agreeable(-2)]),
        ("logit_bias", {Agreeable(-1): 1.0}),
        ("logit_bias", {1: AgreeableFloat("nan")}),
    ],
)
def test_a_number_does_not_decide_itself_whether_it_is_in_its_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("max_tokens", 2.0, "as plain ints"),
        ("top_k", True, "as plain ints"),
        ("stop_token_ids", [decimal.Decimal(3)], "as plain ints"),
        ("temperature", decimal.Decimal("0.5"), "a plain int or float"),
        ("logit_bias", {3: "1"}, "a plain int or float"),
    ],
)
def test_a_value_of_another_type_that_looks_in_range_is_told_its_type(name: str, value: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}.* is .*; it must be .*, {kind}$"):
        SamplingParams(**{name: value})


def test_numbers_of_subclasses_are_kept_as_plain_ones() -> None:
    three = Agreeable(3)
    params = SamplingParams(n=three, seed=three, stop_token_ids=[three], logit_bias={three: AgreeableFloat(2.5)})  # type: ignore[arg-type]
    assert params.logit_bias is not None
    kept = [params.n, params.seed, *params.stop_token_ids, *params.logit_bias]
    assert (kept, {type(value) for value in kept}) == ([3] * 4, {int})
    assert [type(bias) for bias in params.logit_bias.values()] == [float]


class Dimensionless:
    """Iterable by its type alone, as an array of no dimensions is."""

    def __iter__(self) -> Any:
        raise TypeError("iteration over a 0-d array")


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words", "forced_token_ids"])
def test_a_collection_that_only_looks_like_one_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*0-d array"):
        SamplingParams(**{name: Dimensionless()})  # type: ignore[arg-type]


def test_a_mapping_may_spell_ids_of_logit_bias_as_decimal_strings() -> None:
    biases = json.loads('{"0": -100, "12": 1.5}')
    assert SamplingParams.from_dict({"logit_bias": biases}).logit_bias == {0: -100, 12: 1.5}
    assert SamplingParams.from_dict({"logit_bias": {5: 1}}).logit_bias == {5: 1}


@pytest.mark.parametrize("key", ["", "-1", "+1", "1.0", "x", " 1", "1_0", "²", "٣", "9" * 5000])
def test_other_ids_of_logit_bias_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^logit_bias is .*; it must be a mapping from token ids >= 0"):
        SamplingParams.from_dict({"logit_bias": {key: 1.0}})


@pytest.mark.parametrize("biases", [{"7": 1.0, 7: 1.0}, {7: 1.0, "7": 2.0}, {"7": 1.0, "07": 1.0}], ids=str)
def test_two_spellings_of_one_id_are_an_error(biases: dict[Any, float]) -> None:
    with pytest.raises(ConfigError, match="logit_bias has token id 7 twice"):
        SamplingParams.from_dict({"logit_bias": biases})


@pytest.mark.parametrize(("given", "kept"), [(True, 0), (False, None), (3, 3), (0, 0)])
def test_prompt_logprobs_of_a_mapping_may_be_a_switch(given: Any, kept: int | None) -> None:
    assert SamplingParams.from_dict({"prompt_logprobs": given}).prompt_logprobs == kept


@pytest.mark.parametrize(("given", "kept"), [(0, 0), (1, 1), (None, 0)])
def test_a_protected_first_token_is_a_minimum_of_one(given: int | None, kept: int) -> None:
    assert SamplingParams.from_dict({"first_n_token_no_eos": given}).min_tokens == kept


@pytest.mark.parametrize("value", [2, -1, True, 1.0, "1", [1]])
def test_a_protection_without_effect_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"first_n_token_no_eos is .* must be 0 or 1, and min_tokens takes more"):
        SamplingParams.from_dict({"first_n_token_no_eos": value})


def test_a_mapping_understands_both_spellings_and_drops_none() -> None:
    params = SamplingParams.from_dict({"seq_seed": 7, "top_k": None, "top_logprobs": None, "stop": "x"})
    assert params == SamplingParams(seed=7, stop=("x",))


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("seed", "seq_seed"),
        ("logprobs", "top_logprobs"),
        ("structured", "so_args"),
        ("structured", "structured_outputs"),
        ("forced_token_ids", "golden_token_ids"),
        ("min_tokens", "first_n_token_no_eos"),
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
