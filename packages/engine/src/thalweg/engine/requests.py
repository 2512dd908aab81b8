"""What the engine remembers about each request, and the table that finds it by request id or sequence id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from thalweg.engine.detokenizer import Detokenizer
from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.engine.stop import StopChecker
from thalweg.interfaces import CompletionOutput, FinishReason, RequestMetrics, RequestOutput, SamplingParams


@dataclass(slots=True)
class RequestState:
    """One request from `add_request` to its final output."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    sampling: SamplingRow
    detokenizer: Detokenizer
    stop_checker: StopChecker
    arrival_s: float
    sequence_id: int = -1
    token_ids: list[int] = field(default_factory=list)
    first_token_s: float | None = None
    finished_s: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    num_preemptions: int = 0

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def to_sample(self) -> SequenceToSample:
        """What the sampler must know now."""
        return SequenceToSample(self.sampling, self.sequence_id, self.prompt_token_ids, self.token_ids)

    def append(self, token_id: int, now_s: float) -> bool:
        """Take one output token; True if it ends the output by a stop string or a stop token.

        A token can end the output only beyond `min_tokens`. A stop string leaves the text, a stop token stays in it.
        """
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.token_ids.append(token_id)
        can_stop = len(self.token_ids) > self.params.min_tokens
        self.stop_checker.push(self.detokenizer.push((token_id,)), can_stop=can_stop)
        if self.stop_checker.matched is not None:
            self.finish(FinishReason.STOP, now_s, stop_reason=self.stop_checker.matched)
        elif can_stop and token_id in self.params.stop_token_ids:
            self.finish(FinishReason.STOP, now_s, stop_reason=token_id)
        return self.is_finished

    def finish(
        self, reason: FinishReason, now_s: float, *, stop_reason: str | int | None = None, error: str | None = None
    ) -> None:
        """End the output and release the text that was held back."""
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.error = error
        self.finished_s = now_s
        if self.stop_checker.matched is None:
            self.stop_checker.push(self.detokenizer.finish(), can_stop=False)
            self.stop_checker.finish()

    def output(self) -> RequestOutput:
        """The request as its user sees it now."""
        first, last = self.first_token_s, self.finished_s
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=None,
            outputs=(
                CompletionOutput(
                    index=0,
                    text=self.stop_checker.text,
                    token_ids=tuple(self.token_ids),
                    logprobs=None,
                    finish_reason=None if self.finish_reason is None else self.finish_reason.value,
                    stop_reason=self.stop_reason,
                ),
            ),
            finished=self.is_finished,
            error=self.error,
            metrics=RequestMetrics(
                num_prompt_tokens=len(self.prompt_token_ids),
                num_output_tokens=len(self.token_ids),
                time_to_first_token_s=None if first is None else first - self.arrival_s,
                total_time_s=None if last is None else last - self.arrival_s,
                num_preemptions=self.num_preemptions,
            ),
        )


class RequestTable:
    """The unfinished requests, by request id and by sequence id."""

    def __init__(self) -> None:
        self._by_request: dict[str, RequestState] = {}
        self._by_sequence: dict[int, RequestState] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(list(self._by_request.values()))

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_request

    def add(self, state: RequestState) -> None:
        self._by_request[state.request_id] = state
        self._by_sequence[state.sequence_id] = state

    def remove(self, state: RequestState) -> None:
        del self._by_request[state.request_id]
        del self._by_sequence[state.sequence_id]

    def by_request(self, request_id: str) -> RequestState | None:
        return self._by_request.get(request_id)

    def by_sequence(self, sequence_id: int) -> RequestState | None:
        """The unfinished request of a sequence; None once it has finished."""
        return self._by_sequence.get(sequence_id)
