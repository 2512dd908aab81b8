"""From the sampling parameters of a request to the `SamplingRow` that the sampler needs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import ConfigError, GrammarSpec, RequestError, SamplingParams, shown

_LARGEST_TEMPERATURE = float(np.finfo(np.float32).max)
_SMALLEST_TOP_P = float(np.finfo(np.float32).tiny)
_LARGEST_REPETITION = 2.0**100
"""Together with any temperature it leaves room for logits of some hundreds in float32."""


class RowMaker:
    """Checks sampling parameters against a vocabulary and turns them into rows.

    vocab_size: token ids are below it. token_blacklist: ids that are never drawn.
    Raises ConfigError for a blacklist that has other ids, or all of them.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, token_blacklist: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._blacklist = frozenset(token_blacklist)
        for token_id in self._blacklist:
            if token_id >= vocab_size:
                raise ConfigError(
                    f"token_blacklist contains {shown(token_id)}; the model has token ids 0..{vocab_size - 1}"
                )
        if len(self._blacklist) == vocab_size:
            raise ConfigError(f"token_blacklist has all {vocab_size} tokens; at least one must be left to draw")

    def row(self, params: SamplingParams) -> SamplingRow:
        """The row of a request, but for the seed, which is 0.

        Raises RequestError for ids outside the vocabulary, and for a request that cannot be sampled.
        """
        self._check_ids(params)
        ending = set(params.stop_token_ids)
        if not params.ignore_eos:
            ending.add(self._tokenizer.eos_token_id)
        bad_words = self._bad_words(params.bad_words)
        self._check_forced(params, ending)
        self._check_choice(params, ending, bad_words)
        bias = sorted((params.logit_bias or {}).items())
        return SamplingRow(
            # The sampler computes in float32. Beyond its range these values mean what the last ones inside it mean:
            # no preference at all, the most likely token alone, never again (or only) what was there before.
            temperature=min(params.temperature, _LARGEST_TEMPERATURE),
            top_p=max(params.top_p, _SMALLEST_TOP_P),
            top_k=params.top_k,
            min_p=params.min_p,
            min_tokens=params.min_tokens,
            forbidden_ids=np.array(sorted(ending), np.int64),
            eos_token_id=-1 if params.ignore_eos else self._tokenizer.eos_token_id,
            repetition_penalty=min(max(params.repetition_penalty, 1 / _LARGEST_REPETITION), _LARGEST_REPETITION),
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            bias_ids=np.array([token_id for token_id, _ in bias], np.int64),
            biases=np.array([bias for _, bias in bias], np.float32),
            bad_words=bad_words,
            forced_ids=np.array(params.forced_token_ids or (), np.int32),
            num_logprobs=params.logprobs,
            num_prompt_logprobs=params.prompt_logprobs,
        )

    def _check_ids(self, params: SamplingParams) -> None:
        for name in ("stop_token_ids", "logit_bias", "forced_token_ids"):
            for token_id in getattr(params, name) or ():
                if token_id >= self._vocab_size:
                    raise RequestError(f"{name} contains {shown(token_id)}; it must be in 0..{self._vocab_size - 1}")
        if params.structured is not None:
            self._check_trigger(params.structured)
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is not None and count > self._vocab_size:
                raise RequestError(
                    f"{name} is {count}; the vocabulary has {self._vocab_size} tokens, so it is the most"
                )

    def _check_trigger(self, grammar: GrammarSpec) -> None:
        bound = () if grammar.bound_token_id is None else (grammar.bound_token_id,)
        for name, token_ids in (("trigger_token_ids", grammar.trigger_token_ids), ("bound_token_id", bound)):
            for token_id in token_ids:
                if token_id >= self._vocab_size:
                    raise RequestError(
                        f"{name} of the grammar has {shown(token_id)}; it must be in 0..{self._vocab_size - 1}"
                    )

    def _bad_words(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences of every word as it is, and with a space in front; each once."""
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word,) if word[0].isspace() else (word, " " + word):
                token_ids = tuple(self._tokenizer.encode(text, add_bos=False))
                if not token_ids or max(token_ids) >= self._vocab_size:
                    raise RequestError(
                        f"bad_words contains {shown(word)}, whose token ids are {list(token_ids)}; there must be some, "
                        f"all in 0..{self._vocab_size - 1}"
                    )
                sequences[token_ids] = None
        return tuple(sequences)

    def _check_forced(self, params: SamplingParams, ending: set[int]) -> None:
        for index, token_id in enumerate((params.forced_token_ids or ())[: params.min_tokens]):
            if token_id in ending:
                raise RequestError(
                    f"forced_token_ids makes token {index + 1} of the output {token_id}, the end of sequence, and "
                    f"min_tokens is {params.min_tokens}; no stop may be forced before min_tokens"
                )

    def _check_choice(self, params: SamplingParams, ending: set[int], bad_words: tuple[tuple[int, ...], ...]) -> None:
        """Raise RequestError if no token could ever be drawn, or none before `min_tokens`."""
        singles = {word[0] for word in bad_words if len(word) == 1}
        if not params.min_tokens:
            ending = set()
        if len(ending) + len(singles) + len(self._blacklist) < self._vocab_size:
            return  # the usual case, without building unions
        if len(self._blacklist | ending | singles) == self._vocab_size:
            reasons = [f"a stop while min_tokens is {params.min_tokens}"] if ending else []
            reasons += ["in bad_words"] if singles else []
            reasons += ["in token_blacklist"] if self._blacklist else []
            raise RequestError(f"every token is {' or '.join(reasons)}; no token could be drawn")
