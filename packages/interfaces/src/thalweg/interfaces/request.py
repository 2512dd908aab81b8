"""What a user submits and what comes back."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from thalweg.interfaces.checks import is_same, shown
from thalweg.interfaces.errors import ConfigError
from thalweg.interfaces.step import SequenceStatus

_MAX_INT32 = 2**31 - 1
_MAX_LOGPROBS = 1000


class FinishReason(enum.Enum):
    """Why an output ended; the value is the text users see."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    PROMPT_TOO_LONG = "prompt_length_exceeded"
    PREEMPTED = "insufficient_system_resource"
    STRUCTURED_FAILED = "structured_output_failed"
    VISION_FAILED = "vision_failed"
    ERROR = "error"

    @staticmethod
    def from_status(status: SequenceStatus) -> FinishReason:
        """The reason of a final status. Raises ValueError for an unfinished one."""
        try:
            return _REASONS[status]
        except KeyError:
            raise ValueError(f"status {status!r} is not final") from None


_REASONS = {
    SequenceStatus.FINISHED_STOPPED: FinishReason.STOP,
    SequenceStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    SequenceStatus.FINISHED_ABORTED: FinishReason.ABORT,
    SequenceStatus.FINISHED_IGNORED: FinishReason.PROMPT_TOO_LONG,
    SequenceStatus.FINISHED_PREEMPTED: FinishReason.PREEMPTED,
    SequenceStatus.FINISHED_STRUCTURED_FAILED: FinishReason.STRUCTURED_FAILED,
    SequenceStatus.FINISHED_VISION_FAILED: FinishReason.VISION_FAILED,
}


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A constraint on the output text: exactly one kind and its source."""

    kind: str
    """regex, json, ebnf, choice or structural_tag."""
    source: str


# Fields that thalweg accepts only at their default until their feature exists.
_NOT_YET: frozenset[str] = frozenset({"structured"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops; vLLM's names.

    temperature: below 1e-5 is greedy: argmax, lowest id on ties. top_p in (0, 1]; top_k -1 or >= 1 (-1 disables).
    seed: reduced modulo 2**64; None draws one per request. max_tokens, min_tokens: output tokens.
    stop: strings that end the output and are not part of it; stop_token_ids end it and are part of it.
    Raises ConfigError naming field, value and what is accepted; TypeError for a seed that is not an int.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured: GrammarSpec | None = None
    forced_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._normalise()
        self._check_numbers()
        self._check_stops()
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _NOT_YET and not is_same(value, field.default):
                raise ConfigError(f"{field.name} is {shown(value)}; this version supports only {field.default!r}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> SamplingParams:
        """Build from a mapping; None means the default, and DeepInfer's spellings are understood.

        Raises ConfigError for an unknown key or for two spellings of one field.
        """
        known = {field.name for field in fields(SamplingParams)}
        result: dict[str, Any] = {}
        for key, value in values.items():
            if value is None:
                continue
            name = _ALIASES.get(key, key)
            if name not in known:
                raise ConfigError(f"unknown sampling option {shown(key)}; known are {', '.join(sorted(known))}")
            if name in result:
                raise ConfigError(f"{name} is given twice, once as {shown(key)}")
            result[name] = value
        return SamplingParams(**result)

    def _normalise(self) -> None:
        put = object.__setattr__
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            put(self, name, (value,) if isinstance(value, str) else _as_tuple(name, value, "strings"))
        put(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids, "token ids >= 0"))
        if self.seed is not None:
            if isinstance(self.seed, bool) or not isinstance(self.seed, int):
                raise TypeError(f"seed is {shown(self.seed)}; it must be an int or None")
            put(self, "seed", self.seed % 2**64)

    def _check_numbers(self) -> None:
        _require_number("temperature", self.temperature, lambda value: value >= 0, ">= 0 and finite")
        _require_number("top_p", self.top_p, lambda value: 0 < value <= 1, "in (0, 1]")
        _require_int("top_k", self.top_k, lambda value: value == -1 or 1 <= value <= _MAX_INT32, "-1 or 1..2**31-1")
        _require_int("max_tokens", self.max_tokens, lambda value: 1 <= value <= _MAX_INT32, "1..2**31-1")
        _require_int("min_tokens", self.min_tokens, lambda value: 0 <= value <= self.max_tokens, "0..max_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _require_int(name, value, lambda value: 0 <= value <= _MAX_LOGPROBS, f"None or 0..{_MAX_LOGPROBS}")
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos is {shown(self.ignore_eos)}; it must be True or False")

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ConfigError(f"stop contains {shown(text)}; every stop must be a non-empty string")
        for token_id in self.stop_token_ids:
            _require_int("stop_token_ids", token_id, lambda value: value >= 0, "a tuple of token ids >= 0")


_ALIASES = {
    "seq_seed": "seed",
    "top_logprobs": "logprobs",
    "so_args": "structured",
    "golden_token_ids": "forced_token_ids",
}


def _as_tuple(name: str, value: object, items: str) -> tuple[Any, ...]:
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} is {shown(value)}; it must be a sequence of {items}")
    return tuple(value)


def _require_number(name: str, value: Any, holds: Callable[[float], bool], accepted: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and -math.inf < value < math.inf and holds(value)):
        raise ConfigError(f"{name} is {shown(value)}; it must be {accepted}")


def _require_int(name: str, value: object, holds: Callable[[int], bool], accepted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not holds(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be {accepted}")


@dataclass(frozen=True, slots=True)
class Request:
    """One validated request on its way into the engine."""

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    arrival_time_s: float


@dataclass(frozen=True, slots=True)
class TokenDraw:
    """How a token was drawn; in the distribution after masks, penalties, temperature and filters."""

    sum_smaller_probs: float
    """Mass of the tokens that were less likely, or as likely with no higher id, the token itself included."""
    draft_logprob: float | None
    """Log-probability with which an accepted draft was proposed; None for a token that was no draft."""
    accept_prob: float | None
    """Probability that a draft in this place is accepted; None where none was judged."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated continuation."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...] | None
    """Per token of `token_ids`: id -> log-probability of the alternatives asked for and of the token itself, from the
    most likely on, the lower id first among equals; at least -9999. None: not asked for."""
    finish_reason: str | None
    """None while it runs, else a `FinishReason` value."""
    stop_reason: str | int | None
    """The stop string or stop token id that ended it; None for end of sequence, length and the rest."""
    draws: tuple[TokenDraw, ...] | None = None
    """Per token of `token_ids`, of an engine with `return_draws`; else None."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times and counts of one request; seconds are wall-clock differences."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    time_to_first_token_s: float | None = None
    total_time_s: float | None = None
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The state of one request; cumulative, so the latest one says everything."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[Mapping[int, float], ...] | None
    """Per prompt token from the second one on, as `CompletionOutput.logprobs`, as far as they are known. None: not
    asked for."""
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    error: str | None
    """Why the request was refused or failed; None when it ran."""
    metrics: RequestMetrics
