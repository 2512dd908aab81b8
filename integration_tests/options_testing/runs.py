"""What requests say in one setup, in a form that can be compared, and what happened while they were served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from drafts_testing.bench import Bench, Request, Setup
from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import CompletionOutput, RequestOutput

Logprobs = tuple[tuple[tuple[int, float], ...], ...] | None


@dataclass(frozen=True)
class SaidOutput:
    """One output; nothing in it may depend on how it was served."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: Logprobs
    """Order included."""
    finish_reason: str | None
    stop_reason: str | int | None
    sums: tuple[float, ...] | None
    """`sum_smaller_probs` of the draws. The rest of a draw tells of drafts, which do depend on how it was served."""


@dataclass(frozen=True)
class Said:
    """One request: its outputs, and what else its user reads."""

    outputs: tuple[SaidOutput, ...]
    prompt_logprobs: Logprobs
    error: str | None
    usage: tuple[int, int]
    """Prompt tokens, output tokens."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first output."""
        return self.outputs[0].token_ids

    @staticmethod
    def of(output: RequestOutput) -> Said:
        metrics = output.metrics
        return Said(
            tuple(map(_said_output, output.outputs)),
            _pairs(output.prompt_logprobs),
            output.error,
            (metrics.num_prompt_tokens, metrics.num_output_tokens),
        )


class Run:
    """Requests served in one setup."""

    def __init__(self, setup: Setup, requests: Sequence[Request], arrivals: Mapping[int, int] | None = None) -> None:
        bench = Bench(setup)
        bench.keep_records()
        with bench.engine:
            self.finals = bench.serve(requests, arrivals)
        self.setup = setup
        self.requests = requests
        self.records: list[StepRecord] = bench.records
        self.said = [Said.of(output) for output in self.finals]

    @property
    def decode_steps(self) -> Iterator[StepRecord]:
        return (record for record in self.records if not record.plan.token_ids.size and record.plan.sequence_ids.size)

    @property
    def prefill_steps(self) -> Iterator[StepRecord]:
        return (record for record in self.records if record.plan.token_ids.size)

    def rows(self, name: str) -> NDArray[np.int64]:
        """A figure of the outcomes of decode steps, for every row that yielded a token: `num_accepted`, ..."""
        steps = [record.outcome for record in self.decode_steps]
        values = [getattr(outcome, name)[outcome.num_verified > 0] for outcome in steps]
        return np.concatenate([np.zeros(0, np.int64), *values])


def difference(expected: Said, found: Said) -> str | None:
    """What differs first between two answers to one request; None = nothing."""
    if expected == found:
        return None
    for number, (mine, theirs) in enumerate(zip(expected.outputs, found.outputs, strict=False)):
        for field in fields(mine):
            values = getattr(mine, field.name), getattr(theirs, field.name)
            if values[0] != values[1]:
                return f"{field.name} of output {number}: {_where(*values)}"
    for field in fields(expected):
        values = getattr(expected, field.name), getattr(found, field.name)
        if values[0] != values[1]:
            return f"{field.name}: {_where(*values)}"
    raise AssertionError("the answers differ in nothing")


def differences(expected: Sequence[Said], found: Sequence[Said]) -> dict[int, str]:
    """By number of the request."""
    pairs = enumerate(zip(expected, found, strict=True))
    return {number: text for number, pair in pairs if (text := difference(*pair)) is not None}


def _said_output(output: CompletionOutput) -> SaidOutput:
    return SaidOutput(
        output.index,
        output.text,
        output.token_ids,
        _pairs(output.logprobs),
        output.finish_reason,
        output.stop_reason,
        None if output.draws is None else tuple(draw.sum_smaller_probs for draw in output.draws),
    )


def _pairs(logprobs: Sequence[Mapping[int, float]] | None) -> Logprobs:
    return None if logprobs is None else tuple(tuple(row.items()) for row in logprobs)


def _where(expected: object, found: object) -> str:
    """The first place where two sequences differ, or the two values."""
    if isinstance(expected, tuple) and isinstance(found, tuple):
        for place, (mine, theirs) in enumerate(zip(expected, found, strict=False)):
            if mine != theirs:
                return f"at {place} expected {mine!r}, found {theirs!r}"
        return f"expected {len(expected)} entries, found {len(found)}"
    return f"expected {expected!r}, found {found!r}"
