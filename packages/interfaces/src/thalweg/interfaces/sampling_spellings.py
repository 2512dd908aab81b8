"""The spellings of sampling options that come from elsewhere, mapped to the fields of `SamplingParams` once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from thalweg.interfaces.checks import shown
from thalweg.interfaces.errors import ConfigError
from thalweg.interfaces.grammar_spec import GrammarSpec

_ALIASES = {
    "seq_seed": "seed",
    "top_logprobs": "logprobs",
    "so_args": "structured",
    "structured_outputs": "structured",
    "golden_token_ids": "forced_token_ids",
    "first_n_token_no_eos": "min_tokens",
}


def to_fields(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Field -> value of what a mapping gives; None leaves a field out.

    Keys may be DeepInfer's or vLLM's, and `structured` a mapping. DeepInfer's values of `prompt_logprobs`, True and
    False, mean 0 and None, and its `first_n_token_no_eos` 1 means one token; the ids of `logit_bias` may be decimal
    strings, as JSON has them. Everything else stays as it is.
    Raises ConfigError for a key that is not known, for two spellings of one field or of one id, and for a
    `first_n_token_no_eos` beyond 0 and 1, which have no effect where the option comes from.
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        name = _ALIASES.get(key, key)
        if name not in known:
            raise ConfigError(f"unknown sampling option {shown(key)}; known are {', '.join(sorted(known))}")
        if name in result:
            raise ConfigError(f"{name} is given twice, once as {shown(key)}")
        if key == "first_n_token_no_eos" and (type(value) is not int or value not in (0, 1)):
            raise ConfigError(f"first_n_token_no_eos is {shown(value)}; it must be 0 or 1, and min_tokens takes more")
        if name == "prompt_logprobs" and isinstance(value, bool):
            value = 0 if value else None
        elif name == "logit_bias" and isinstance(value, Mapping):
            value = _with_integer_ids(value)
        elif name == "structured" and isinstance(value, Mapping):
            value = _to_grammar(key, value)
        result[name] = value
    return result


def _with_integer_ids(biases: Mapping[Any, Any]) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, bias in biases.items():
        is_decimal = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10
        token_id = int(key) if is_decimal else key
        if token_id in result:
            raise ConfigError(f"logit_bias has token id {shown(token_id)} twice, once as {shown(key)}")
        result[token_id] = bias
    return result


def _to_grammar(key: str, value: Mapping[Any, Any]) -> GrammarSpec:
    try:
        return GrammarSpec.from_dict(value)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
