"""What the engine remembers about each request, and the table that finds it by request id or sequence id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from thalweg.engine.outputs import OutputState
from thalweg.engine.sampling_row import SequenceToSample
from thalweg.interfaces import RequestMetrics, RequestOutput, SamplingParams


@dataclass(slots=True, eq=False)
class RequestState:
    """One request from `add_request` to its final output; it has finished when all its outputs have."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    outputs: tuple[OutputState, ...]
    arrival_s: float
    prompt_logprobs: tuple[Mapping[int, float], ...] = ()
    """Of the tokens from the second one on, as far as they are known, if they were asked for."""
    first_token_s: float | None = None
    """When the first of any output came."""
    finished_s: float | None = None
    """When the last of all outputs ended; None = some go on."""

    @property
    def unfinished(self) -> list[OutputState]:
        return [output for output in self.outputs if not output.is_finished]

    def note_finish(self, now_s: float) -> None:
        """Remember that the request has finished, if it has."""
        if self.finished_s is None and not self.unfinished:
            self.finished_s = now_s

    def to_sample(self, output: OutputState, num_siblings: int = 0) -> SequenceToSample:
        """What the sampler must know now about the sequence of an output.

        num_siblings: so many of its followers, at most, get their first tokens in this step, too.
        """
        return SequenceToSample(
            row=output.sampling,
            key=output.key,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=output.token_ids,
            num_prompt_logprobs_known=len(self.prompt_logprobs),
            siblings=tuple(map(self.to_sample, output.followers[:num_siblings])),
            constraint=output.constraint,
        )

    def show(self, *, has_draws: bool = False) -> RequestOutput:
        """The request as its user sees it now; has_draws: as `OutputState.show`."""
        shown, num_tokens, num_preemptions, error = [], 0, 0, None
        for output in self.outputs:
            shown.append(output.show(has_draws=has_draws))
            num_tokens += len(output.token_ids)
            num_preemptions += output.num_preemptions
            error = output.error if error is None else error
        first, last = self.first_token_s, self.finished_s
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=None if self.params.prompt_logprobs is None else self.prompt_logprobs,
            outputs=tuple(shown),
            finished=last is not None,
            error=error,
            metrics=RequestMetrics(
                num_prompt_tokens=len(self.prompt_token_ids),
                num_output_tokens=num_tokens,
                time_to_first_token_s=None if first is None else first - self.arrival_s,
                total_time_s=None if last is None else last - self.arrival_s,
                num_preemptions=num_preemptions,
            ),
        )


class RequestTable:
    """The unfinished requests, by request id and by the sequences of their unfinished outputs."""

    def __init__(self) -> None:
        self._by_request: dict[str, RequestState] = {}
        self._by_sequence: dict[int, tuple[RequestState, OutputState]] = {}
        self._keys = itertools.count()

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(list(self._by_request.values()))

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_request

    def add(self, request: RequestState) -> None:
        """Take a new request, whose outputs have no sequences yet."""
        self._by_request[request.request_id] = request
        for output in request.outputs:
            output.key = next(self._keys)

    def place(self, request: RequestState, output: OutputState, sequence_id: int) -> None:
        """Give an output its sequence."""
        output.sequence_id = sequence_id
        self._by_sequence[sequence_id] = request, output

    def hand_over(self, request: RequestState, owner: OutputState, heir: OutputState) -> None:
        """Give an output the sequence of another one, which then has none."""
        sequence_id, owner.sequence_id = owner.sequence_id, -1
        self.place(request, heir, sequence_id)

    def forget_sequence(self, output: OutputState) -> None:
        """What the scheduler still says about the sequence of an output finds nobody from now on."""
        self._by_sequence.pop(output.sequence_id, None)

    def remove(self, request: RequestState) -> None:
        """Forget a request and its sequences."""
        del self._by_request[request.request_id]
        for output in request.outputs:
            self.forget_sequence(output)

    def by_request(self, request_id: str) -> RequestState | None:
        return self._by_request.get(request_id)

    def by_sequence(self, sequence_id: int) -> tuple[RequestState, OutputState] | None:
        """The output that a sequence makes, and its request; None once that output has finished."""
        return self._by_sequence.get(sequence_id)
