"""One output of a request: its tokens, its text, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thalweg.engine.constraint import Constraint
from thalweg.engine.detokenizer import Detokenizer
from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.stop import StopChecker
from thalweg.interfaces import CompletionOutput, FinishReason, SamplingParams, TokenDraw


@dataclass(slots=True, eq=False)
class OutputState:
    """One continuation of a prompt, from `add_request` to its finish reason."""

    index: int
    params: SamplingParams
    sampling: SamplingRow
    detokenizer: Detokenizer
    stop_checker: StopChecker
    constraint: Constraint | None = None
    """Of a request with a grammar, once that is compiled."""
    key: int = -1
    """Given by the request table, never again to another output."""
    sequence_id: int = -1
    """In the scheduler; -1 = it has no sequence of its own yet."""
    followers: list[OutputState] = field(default_factory=list)
    """Outputs that share the sequence of this one until their prompt is computed; in the order of their indices."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Mapping[int, float]] = field(default_factory=list)
    """One per token, if they were asked for."""
    draws: list[TokenDraw] = field(default_factory=list)
    """One per token, if the engine reports them."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    num_preemptions: int = 0
    _shown: CompletionOutput | None = None

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def append(self, token_id: int) -> bool:
        """Take one token; True if it ends the output by a stop string or a stop token.

        A token can end the output only beyond `min_tokens`. A stop string leaves the text, a stop token stays in it.
        """
        self._shown = None
        self.token_ids.append(token_id)
        can_stop = len(self.token_ids) > self.params.min_tokens
        self.stop_checker.push(self.detokenizer.push((token_id,)), can_stop=can_stop)
        if self.stop_checker.matched is not None:
            self.finish(FinishReason.STOP, stop_reason=self.stop_checker.matched)
        elif can_stop and token_id in self.params.stop_token_ids:
            self.finish(FinishReason.STOP, stop_reason=token_id)
        return self.is_finished

    def finish(self, reason: FinishReason, *, stop_reason: str | int | None = None, error: str | None = None) -> None:
        """End the output and release the text that was held back."""
        self._shown = None
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.error = error
        if self.stop_checker.matched is None:
            self.stop_checker.push(self.detokenizer.finish(), can_stop=False)
            self.stop_checker.finish()

    def show(self, *, has_draws: bool = False) -> CompletionOutput:
        """The output as its user sees it now; has_draws: with what is known about how its tokens were drawn."""
        if self._shown is None:
            self._shown = CompletionOutput(
                index=self.index,
                text=self.stop_checker.text,
                token_ids=tuple(self.token_ids),
                logprobs=None if self.params.logprobs is None else tuple(self.logprobs),
                finish_reason=None if self.finish_reason is None else self.finish_reason.value,
                stop_reason=self.stop_reason,
                draws=tuple(self.draws) if has_draws else None,
            )
        return self._shown
