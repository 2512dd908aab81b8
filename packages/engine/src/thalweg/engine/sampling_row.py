"""How one output of a request is sampled, and what the sampler must know about its past."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.bad_words import BadWords
from thalweg.engine.constraint import Constraint

PARAMETERS = np.dtype(
    [
        ("seed", np.uint64),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("top_k", np.int32),
        ("min_tokens", np.int32),
        ("eos_token_id", np.int32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("num_logprobs", np.int32),  # -1 = none, as below
        ("num_prompt_logprobs", np.int32),
        ("has_penalties", np.bool_),
        ("has_biases", np.bool_),
        ("has_bad_words", np.bool_),
        ("has_forced_ids", np.bool_),
    ]
)
"""The numbers of a `SamplingRow`. As records they are gathered from the sequences of a step all at once."""


def _no_ids() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """How the sampler treats one sequence; constant from its first step to its last."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int = 0
    """0 <= seed < 2**64."""
    min_tokens: int = 0
    forbidden_ids: NDArray[np.int64] = field(default_factory=_no_ids)
    """[f] token ids that would end the output, not to be sampled before `min_tokens`."""
    eos_token_id: int = -1
    """Ends the output; -1 when it is ignored."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_ids: NDArray[np.int64] = field(default_factory=_no_ids)
    """[b] token ids, all different, whose logits are shifted."""
    biases: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """[b] by how much."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not contain."""
    forced_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """[k] output token k is this one; -1 = free, as is everything past the end."""
    num_logprobs: int | None = None
    """Alternatives to report per output token; None = no log-probabilities at all."""
    num_prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    packed: bytes = field(init=False, repr=False, compare=False)
    """One record of `PARAMETERS`."""
    bad_word_table: BadWords = field(init=False, repr=False, compare=False)
    """Of `bad_words`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bad_word_table", BadWords(self.bad_words))
        object.__setattr__(self, "packed", np.array(self._record(), PARAMETERS).tobytes())

    def with_seed(self, seed: int) -> SamplingRow:
        """The same with another seed; what is derived from the rest is shared, as a request may have many outputs."""
        row, record = copy.copy(self), np.frombuffer(self.packed, PARAMETERS).copy()
        record["seed"] = seed
        object.__setattr__(row, "seed", seed)
        object.__setattr__(row, "packed", record.tobytes())
        return row

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on the tokens so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def _record(self) -> tuple[float | bool, ...]:
        return (
            self.seed,
            self.temperature,
            self.top_p,
            self.min_p,
            self.top_k,
            self.min_tokens,
            self.eos_token_id,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            -1 if self.num_logprobs is None else self.num_logprobs,
            -1 if self.num_prompt_logprobs is None else self.num_prompt_logprobs,
            self.has_penalties,
            self.bias_ids.size > 0,
            len(self.bad_words) > 0,
            self.forced_ids.size > 0,
        )

    @staticmethod
    def neutral() -> SamplingRow:
        """For a row whose request has ended while the step was on its way; what it yields goes nowhere."""
        return _NEUTRAL


_NEUTRAL = SamplingRow()


@dataclass(frozen=True, slots=True)
class SequenceToSample:
    """One row of a plan as the sampler sees it."""

    row: SamplingRow
    key: int = -1
    """Of the output that this sequence makes; never used again for another one. -1 = nobody's."""
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    """Everything emitted so far, the newest token included."""
    num_prompt_logprobs_known: int = 0
    """Log-probabilities of so many prompt tokens, from the second one on, have been reported before."""
    siblings: tuple[SequenceToSample, ...] = ()
    """Outputs that share this prompt and have no sequence of their own yet: the end of the prompt draws a first token
    for each of them, too."""
    constraint: Constraint | None = None
    """Of an output with a grammar; its siblings share the mask of their prompt's last row."""
