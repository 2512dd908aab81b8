"""How a user wants a request to be sampled, checked before the engine sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from thalweg.interfaces.checks import as_tuple, is_text, plain, shown
from thalweg.interfaces.errors import ConfigError
from thalweg.interfaces.grammar_spec import GrammarSpec
from thalweg.interfaces.sampling_spellings import to_fields

_MAX_INT32 = 2**31 - 1
_MAX_OUTPUTS = 16_384
_MAX_LOGPROBS = 1000
_LARGEST_BIAS = 100

_NUMBERS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "prompt_logprobs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops; vLLM's names.

    Raises ConfigError naming field, value and what is accepted, or the two fields that contradict each other; TypeError
    for a seed that is not an int. What depends on the vocabulary is checked when the request is added.
    """

    n: int = 1
    """Outputs of one prompt, 1..16384. Output i is that of a request of its own with seed + i."""
    temperature: float = 1.0
    """>= 0; below 1e-5 is greedy: the most likely token, lowest id on ties, whatever the filters say."""
    top_p: float = 1.0
    """Keep the most likely tokens up to this mass, in (0, 1]."""
    top_k: int = -1
    """Keep so many tokens; -1 keeps all."""
    min_p: float = 0.0
    """Keep tokens of at least this share of the largest probability, in [0, 1]."""
    seed: int | None = None
    """Reduced modulo 2**64; None draws one per request."""
    max_tokens: int = 16
    min_tokens: int = 0
    """Output tokens before anything but the length can end the output; at most max_tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the output and are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output and are part of it."""
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the output has, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """The same, times how often the output has them; in [-2, 2]."""
    repetition_penalty: float = 1.0
    """> 0; divides the positive and multiplies the negative logits of tokens that prompt or output have."""
    logit_bias: Mapping[int, float] | None = None
    """Token id -> what is added to its logit, in [-100, 100]."""
    bad_words: tuple[str, ...] = ()
    """Texts whose tokens, with or without a space in front, the output does not contain."""
    logprobs: int | None = None
    """Report the log-probability of every output token and of so many alternatives, 0..1000."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, from the second one on."""
    structured: GrammarSpec | None = None
    """What the text of the output must be, such as JSON of a schema; None leaves it free."""
    forced_token_ids: tuple[int, ...] | None = None
    """Output token k is the k-th of these; -1 leaves it free."""

    def __post_init__(self) -> None:
        self._normalise()
        self._check_numbers()
        self._check_texts()
        self._check_ids()
        self._check_contradictions()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> SamplingParams:
        """Build from a mapping; None means the default, and DeepInfer's and JSON's spellings are understood.

        `structured` may be a mapping, see `GrammarSpec.from_dict`.
        Raises ConfigError for an unknown key or for two spellings of one field.
        """
        known = {field.name for field in fields(SamplingParams)}
        return SamplingParams(**to_fields(values, known))

    def _normalise(self) -> None:
        put = object.__setattr__
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            put(self, name, (value,) if isinstance(value, str) else as_tuple(name, value, "strings"))
        put(self, "stop_token_ids", as_tuple("stop_token_ids", self.stop_token_ids, "token ids >= 0"))
        if self.forced_token_ids is not None:
            forced = as_tuple("forced_token_ids", self.forced_token_ids, "token ids >= 0, or -1 for a free token")
            put(self, "forced_token_ids", forced or None)
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise ConfigError(f"logit_bias is {shown(self.logit_bias)}; it must map token ids to numbers")
            biases = {plain(token_id): plain(bias) for token_id, bias in dict(self.logit_bias).items()}
            put(self, "logit_bias", biases or None)
        if self.seed is not None:
            if isinstance(self.seed, bool) or not isinstance(self.seed, int):
                raise TypeError(f"seed is {shown(self.seed)}; it must be an int or None")
            put(self, "seed", plain(self.seed) % 2**64)
        for name in _NUMBERS:
            put(self, name, plain(getattr(self, name)))

    def _check_numbers(self) -> None:
        _require_int("n", self.n, lambda value: 1 <= value <= _MAX_OUTPUTS, f"1..{_MAX_OUTPUTS}")
        _require_number("temperature", self.temperature, lambda value: value >= 0, ">= 0 and finite")
        _require_number("top_p", self.top_p, lambda value: 0 < value <= 1, "in (0, 1]")
        _require_int("top_k", self.top_k, lambda value: value == -1 or 1 <= value <= _MAX_INT32, "-1 or 1..2**31-1")
        _require_number("min_p", self.min_p, lambda value: 0 <= value <= 1, "in [0, 1]")
        _require_int("max_tokens", self.max_tokens, lambda value: 1 <= value <= _MAX_INT32, "1..2**31-1")
        _require_int("min_tokens", self.min_tokens, lambda value: 0 <= value <= _MAX_INT32, "0..max_tokens")
        for name in ("presence_penalty", "frequency_penalty"):
            _require_number(name, getattr(self, name), lambda value: -2 <= value <= 2, "in [-2, 2]")
        _require_number("repetition_penalty", self.repetition_penalty, lambda value: value > 0, "> 0 and finite")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _require_int(name, value, lambda value: 0 <= value <= _MAX_LOGPROBS, f"None or 0..{_MAX_LOGPROBS}")
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos is {shown(self.ignore_eos)}; it must be True or False")
        if self.structured is not None and not isinstance(self.structured, GrammarSpec):
            raise ConfigError(
                f"structured is {shown(self.structured)}; it must be a GrammarSpec or None (from_dict takes a mapping)"
            )

    def _check_texts(self) -> None:
        for text in self.stop:
            if not is_text(text) or not text:
                raise ConfigError(f"stop contains {shown(text)}; every stop must be a non-empty string of Unicode text")
        for text in self.bad_words:
            if not is_text(text) or not text.strip():
                raise ConfigError(
                    f"bad_words contains {shown(text)}; every bad word must be Unicode text with more than white space"
                )

    def _check_ids(self) -> None:
        for token_id in self.stop_token_ids:
            _require_int("stop_token_ids", token_id, lambda value: value >= 0, "a tuple of token ids >= 0")
        for token_id in self.forced_token_ids or ():
            _require_int("forced_token_ids", token_id, lambda value: value >= -1, "a tuple of token ids >= 0, or -1")
        for token_id, bias in (self.logit_bias or {}).items():
            _require_int("logit_bias", token_id, lambda value: value >= 0, "a mapping from token ids >= 0")
            name, accepted = f"logit_bias[{shown(token_id)}]", f"from {-_LARGEST_BIAS} to {_LARGEST_BIAS}"
            _require_number(name, bias, lambda value: abs(value) <= _LARGEST_BIAS, accepted)

    def _check_contradictions(self) -> None:
        if self.n > 1 and self.is_greedy:
            raise ConfigError(
                f"n is {self.n} and temperature is {self.temperature}; greedy outputs are all equal, so n must be 1 or "
                "temperature at least 1e-5"
            )
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens is {self.min_tokens} and max_tokens is {self.max_tokens}; min_tokens must be 0..max_tokens"
            )
        forced, stops = self.forced_token_ids or (), set(self.stop_token_ids)
        for index in range(self.max_tokens, len(forced)):
            if forced[index] >= 0:
                raise ConfigError(
                    f"forced_token_ids forces token {index + 1} of the output and max_tokens is {self.max_tokens}; "
                    "it must not force what is never sampled"
                )
        for index, token_id in enumerate(forced[: self.min_tokens]):
            if token_id in stops:
                raise ConfigError(
                    f"forced_token_ids makes token {index + 1} of the output {shown(token_id)}, which stop_token_ids "
                    f"contains, and min_tokens is {self.min_tokens}; no stop may be forced before min_tokens"
                )


def _require_number(name: str, value: Any, holds: Callable[[float], bool], accepted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {shown(value)}; it must be {accepted}, a plain int or float")
    if not (-math.inf < value < math.inf and holds(value)):
        raise ConfigError(f"{name} is {shown(value)}; it must be {accepted}")


def _require_int(name: str, value: object, holds: Callable[[int], bool], accepted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {shown(value)}; it must be {accepted}, as plain ints")
    if not holds(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be {accepted}")
