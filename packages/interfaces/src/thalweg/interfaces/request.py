"""What a user submits and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thalweg.interfaces.sampling_params import SamplingParams
from thalweg.interfaces.step import SequenceStatus


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
