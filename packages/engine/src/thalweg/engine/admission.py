"""Which requests are let in, and the state they start with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from thalweg.engine.detokenizer import Detokenizer
from thalweg.engine.outputs import OutputState
from thalweg.engine.requests import RequestState
from thalweg.engine.row_maker import RowMaker
from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.stop import StopChecker, StopStrings
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import ConfigError, RequestError, SamplingParams, shown


class PromptTooLongError(RequestError):
    """The prompt is longer than the model or the cache allows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prompt must keep to."""

    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    """Blocks of the cache, the null block included."""
    token_blacklist: tuple[int, ...] = ()
    """Token ids that are never drawn."""
    has_prompt_logprobs: bool = True
    """Whether every token of a prompt has logits: not under bounded replay."""


class Admission:
    """Checks requests and draws the seeds of those that bring none.

    seed: of the engine. With the same seed and the same order of requests, the drawn seeds are the same.
    Raises ConfigError for a token_blacklist that does not fit the vocabulary.
    """

    def __init__(
        self, tokenizer: Tokenizer, limits: Limits, seed: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._row_maker = RowMaker(tokenizer, limits.vocab_size, limits.token_blacklist)
        self._seeds = np.random.Generator(np.random.PCG64(seed))
        self._clock = clock
        self._stop_strings: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()

    def admit(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | Mapping[str, Any] | None,
        prompt_text: str | None = None,
    ) -> RequestState:
        """The state of a new request. Raises RequestError or ConfigError saying what is wrong with it."""
        sampling_params = to_params(params)
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("the prompt is empty; at least one character is needed")
            prompt_text, prompt = prompt, self._tokenizer.encode(prompt)
        token_ids = self._check_ids(prompt)
        self._check_length(len(token_ids))
        if sampling_params.prompt_logprobs is not None and not self._limits.has_prompt_logprobs:
            raise RequestError(
                f"prompt_logprobs is {sampling_params.prompt_logprobs}; with replay other than 'off' most tokens of "
                "a prompt have no logits, so only None is accepted"
            )
        rows = self._sampling_rows(sampling_params)
        stop_strings = self._shared_stop_strings(sampling_params.stop)
        return RequestState(
            request_id=request_id,
            prompt=prompt_text,
            prompt_token_ids=token_ids,
            params=sampling_params,
            outputs=tuple(
                OutputState(
                    index=index,
                    params=sampling_params,
                    sampling=sampling,
                    detokenizer=Detokenizer(self._tokenizer, token_ids),
                    stop_checker=StopChecker(stop_strings),
                )
                for index, sampling in enumerate(rows)
            ),
            arrival_s=self._clock(),
        )

    def _shared_stop_strings(self, stop: tuple[str, ...]) -> StopStrings:
        """Those of an unfinished request with an equal list, if there is one: long lists tend to be the same."""
        found = self._stop_strings.get(stop)
        if found is None:
            found = self._stop_strings[stop] = StopStrings(stop)
        return found

    def _sampling_rows(self, params: SamplingParams) -> list[SamplingRow]:
        """One row per output; output i has the seed of the request plus i, modulo 2**64."""
        row = self._row_maker.row(params)
        # Always drawn, so that a request with a seed of its own does not shift the seeds of later ones.
        drawn = int(self._seeds.integers(0, 2**64, dtype=np.uint64))
        seed = drawn if params.seed is None else params.seed
        return [row.with_seed((seed + index) % 2**64) for index in range(params.n)]

    def _check_ids(self, prompt: object) -> tuple[int, ...]:
        if hasattr(prompt, "tolist"):  # a numpy array or a torch tensor
            prompt = prompt.tolist()
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
            raise RequestError(f"prompt is {shown(prompt)}; it must be a text or a flat list of token ids")
        if not prompt:
            raise RequestError("the prompt is empty; at least one token is needed")
        highest = self._limits.vocab_size - 1
        for index, token_id in enumerate(prompt):
            if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
                raise RequestError(f"prompt token {index} is {shown(token_id)}; token ids must be integers")
            if not 0 <= token_id <= highest:
                raise RequestError(f"prompt token {index} is {shown(token_id)}; it must be in 0..{highest}")
        return tuple(map(int, prompt))

    def _check_length(self, length: int) -> None:
        limits = self._limits
        if length > limits.max_model_len:
            raise PromptTooLongError(f"the prompt has {length} tokens; max_model_len is {limits.max_model_len}")
        num_needed = -(-length // limits.block_size)
        if num_needed >= limits.num_blocks:
            raise PromptTooLongError(f"the prompt needs {num_needed} cache blocks; there are {limits.num_blocks - 1}")


def to_params(params: object) -> SamplingParams:
    """Sampling parameters from what callers may give; None means the defaults. Raises ConfigError.

    The result is good now: a mapping inside parameters that were checked before may have been changed since.
    """
    if params is None:
        return SamplingParams()
    if isinstance(params, SamplingParams):
        return params if params.logit_bias is None else replace(params)
    if isinstance(params, Mapping):
        return SamplingParams.from_dict(params)
    raise ConfigError(f"sampling_params is {type(params).__name__}; it must be SamplingParams, a mapping or None")
