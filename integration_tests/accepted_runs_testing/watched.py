"""Requests served step by step, every output looked at, and the tokens of every step counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from drafts_testing.bench import Bench, Request, Setup
from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import CompletionOutput, RequestMetrics, RequestOutput, StepKind


@dataclass(frozen=True)
class Run:
    """What one step said for a request."""

    start: int
    """Output index of its first token."""
    num_tokens: int
    """As the scheduler took them: up to the end token or the last one that is allowed."""
    num_accepted: int
    """With the step's newest token."""
    is_decode: bool


@dataclass
class Watched:
    """Final outputs in the order of the requests, and the runs that they were made of."""

    finals: list[RequestOutput] = field(default_factory=list)
    runs: list[list[Run]] = field(default_factory=list)

    @property
    def said(self) -> list[CompletionOutput]:
        """Of requests with one output."""
        return [output.outputs[0] for output in self.finals]

    def last_position(self, number: int) -> int:
        """Where in its run, the first token being 0, the last token of a request is."""
        last = len(self.said[number].token_ids) - 1
        return last - next(run.start for run in reversed(self.runs[number]) if run.start <= last)


Act = Callable[[Bench, int], None]
"""What happens before which step."""


def serve(setup: Setup, requests: Sequence[Request], act: Act | None = None) -> Watched:
    """Serve all of them at once; whatever `act` does must leave the engine able to come to an end."""
    bench = Bench(setup)
    bench.keep_records()
    latest: dict[str, RequestOutput] = {}

    def see(output: RequestOutput) -> None:
        check_growth(latest.get(output.request_id), output)
        latest[output.request_id] = output

    with bench.engine:
        finals = bench.serve(requests, before_step=None if act is None else partial(act, bench), see=see)
    return Watched(finals, _runs(bench.records, len(requests)))


def check_growth(before: RequestOutput | None, now: RequestOutput) -> None:
    """Counts are those of the ids that are shown, and nothing that was shown is taken back."""
    metrics = now.metrics
    assert metrics is not None
    assert metrics.num_output_tokens == sum(len(said.token_ids) for said in now.outputs)
    assert metrics.num_prompt_tokens == len(now.prompt_token_ids)
    for said in now.outputs:
        assert said.logprobs is None or len(said.logprobs) == len(said.token_ids)
        assert said.draws is None or len(said.draws) == len(said.token_ids)
    for old, new in zip(() if before is None else before.outputs, now.outputs, strict=before is not None):
        assert new.token_ids[: len(old.token_ids)] == old.token_ids
        assert new.text.startswith(old.text)
        assert (new.logprobs or ())[: len(old.logprobs or ())] == (old.logprobs or ())
        assert old.finish_reason is None or old == new


def facts(output: RequestOutput) -> RequestOutput:
    """An output without its times."""
    metrics = output.metrics
    assert metrics is not None
    counts = RequestMetrics(
        metrics.num_prompt_tokens,
        metrics.num_output_tokens,
        metrics.num_cached_tokens,
        num_preemptions=metrics.num_preemptions,
    )
    return replace(output, metrics=counts)


def assert_same(ours: Sequence[RequestOutput], theirs: Sequence[RequestOutput], note: object) -> None:
    """Equal in everything but times; the order of alternatives counts, too."""
    for mine, other in zip(ours, theirs, strict=True):
        assert facts(mine) == facts(other), (note, mine.request_id)
        for said, expected in zip(mine.outputs, other.outputs, strict=True):
            orders = [[list(entry) for entry in output.logprobs or ()] for output in (said, expected)]
            assert orders[0] == orders[1], (note, mine.request_id)


def _runs(records: Sequence[StepRecord], num_requests: int) -> list[list[Run]]:
    """By sequence id, which is the number of the request while every request has one output."""
    runs: list[list[Run]] = [[] for _ in range(num_requests)]
    for record in records:
        outcome, plan = record.outcome, record.plan
        counts = outcome.token_offsets[1:] - outcome.token_offsets[:-1]
        rows = zip(plan.sequence_ids.tolist(), counts.tolist(), outcome.num_accepted.tolist(), strict=True)
        for sequence, num_tokens, num_accepted in rows:
            if num_tokens and sequence < num_requests:
                mine = runs[sequence]
                start = mine[-1].start + mine[-1].num_tokens if mine else 0
                mine.append(Run(start, num_tokens, num_accepted, plan.kind is StepKind.DECODE))
    return runs
