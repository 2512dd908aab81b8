"""Requests whose texts are watched, and the company in which they are served.

The model is a table that knows the whole text: after one wrong, missing or misplaced token all later ones differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from drafts_testing import drafters
from drafts_testing.bench import Bench, Request, Setup
from drafts_testing.pieces import cut_prompts
from drafts_testing.tables import Memory, Tables
from drafts_testing.workloads import VOCAB, rising
from thalweg.interfaces import CompletionOutput, SamplingParams

TARGET = Tables.random(VOCAB, seed=5, memory=Memory.EVERYTHING, spread=2.0)
GOOD = TARGET.with_noise(6, 0.8)
"""Of a drafter that is often right."""
PROMPT_LENGTHS = (13, 1, 5, 21, 8, 3)
MAX_TOKENS = 14
FEW_BLOCKS = 14
"""With them six watched requests preempt each other."""
Rule = Literal["rejection", "coupled"]


def prompt(number: int, length: int) -> list[int]:
    choose = random.Random(number)
    return [choose.randrange(3, VOCAB) for _ in range(length)]


def watched(temperature: float | None = None) -> list[Request]:
    """Six requests with seeds: filters, penalties, bans, log-probabilities; all last to the end."""
    given: tuple[dict[str, Any], ...] = (
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "logprobs": 3},
        {"temperature": 1.3, "top_k": 12, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 1.0, "min_p": 0.02, "repetition_penalty": 1.2, "logprobs": 0},
        {"temperature": 2.0, "logit_bias": {4: 1.5, 9: -2.0}, "bad_words": ("a",)},
        {"temperature": 0.9, "top_p": 0.8, "top_k": 15, "min_p": 0.01},
    )
    requests: list[Request] = []
    for number, (options, length) in enumerate(zip(given, PROMPT_LENGTHS, strict=True)):
        params = SamplingParams(seed=1000 + number, max_tokens=MAX_TOKENS, ignore_eos=True, **options)
        requests.append(
            (prompt(number, length), params if temperature is None else replace(params, temperature=temperature))
        )
    return requests


def neighbours(count: int, kind: Literal["seeded", "unseeded", "greedy", "mixed"], number: int = 0) -> list[Request]:
    """Other people's requests, of all lengths."""
    choose = random.Random(f"{kind} {number}")
    requests: list[Request] = []
    for place in range(count):
        this = ("seeded", "unseeded", "greedy")[place % 3] if kind == "mixed" else kind
        params = SamplingParams(
            temperature=0.0 if this == "greedy" else 1.0,
            top_p=choose.choice([1.0, 0.8]),
            seed=None if this == "unseeded" else choose.randrange(2**63),
            max_tokens=choose.randrange(1, 2 * MAX_TOKENS),
            ignore_eos=choose.random() < 0.5,
        )
        requests.append((prompt(choose.randrange(10**9), choose.randrange(1, 30)), params))
    return requests


def drafting(rule: Rule, draft_length: int, **changes: Any) -> Setup:
    """The model with a drafter that is often right, whose confidences are anything."""
    setup = Setup(target=TARGET, drafts=GOOD, draft_length=draft_length, verification=rule, confide=drafters.random)
    return replace(setup, **changes)


def varying(rule: Rule, draft_length: int = 3, batch: int = 8, **changes: Any) -> Setup:
    """Verify lengths by the best throughput of a batch, no measured times in it."""
    options = {"max_num_seqs": batch, "prefill_interval_all": 2}
    return drafting(rule, draft_length, step_times=rising(batch, draft_length), options=options, **changes)


def short_of_memory(setup: Setup) -> Setup:
    """So few blocks that requests preempt each other, and their tokens are computed again."""
    return replace(setup, num_blocks=FEW_BLOCKS, options={"max_num_seqs": 6, "prefill_interval_all": 2})


class Told:
    """What requests said, and what happened on the way."""

    def __init__(
        self,
        setup: Setup,
        requests: Sequence[Request],
        *,
        arrivals: Mapping[int, int] | None = None,
        chunk: int | None = None,
        **options: Any,
    ) -> None:
        """chunk: prompts are computed in pieces that end at multiples of it. options: of the scheduler."""
        if chunk is not None:
            options = {"chunked_prefill": True, "prefill_interval_all": 1} | options
        settled = {"max_num_seqs": len(requests), **setup.options, **options}
        if chunk is not None:
            settled["max_num_batched_tokens"] = max(128, settled["max_num_seqs"] * (1 + setup.draft_length))
        bench = Bench(replace(setup, options=settled))
        bench.keep_records()
        if chunk is not None:
            cut_prompts(bench.scheduler, chunk)
        with bench.engine:
            outputs = bench.serve(requests, arrivals)
        assert [output.error for output in outputs if output.error is not None] == []
        self.said: list[CompletionOutput] = [output.outputs[0] for output in outputs]
        self.num_preemptions = sum(output.metrics.num_preemptions for output in outputs if output.metrics)
        self.num_prompt_steps = sum(record.plan.token_ids.size > 0 for record in bench.records)
        decodes = [record.outcome for record in bench.records if not record.plan.token_ids.size]
        self.batch_sizes = {int((outcome.num_verified > 0).sum()) for outcome in decodes}
        self.verify_lengths = {int(n) for outcome in decodes for n in outcome.num_verified if n}
        self.num_drafts_held = sum(int((outcome.num_accepted - 1).clip(0).sum()) for outcome in decodes)

    def __eq__(self, other: object) -> bool:
        """Whether text, ids, log-probabilities and reasons are the same, request by request."""
        return isinstance(other, Told) and self.said == other.said

    __hash__ = None  # type: ignore[assignment]

    def num_differing(self, other: Told) -> int:
        return sum(mine != theirs for mine, theirs in zip(self.said, other.said, strict=True))


def among(setup: Setup, requests: Sequence[Request], others: Sequence[Request], **rest: Any) -> Told:
    """What requests say that are spread among others, of which nothing is told."""
    stride = 1 + len(others) // max(1, len(requests))
    crowd, places = list(others), []
    for number, request in enumerate(requests):
        places.append(min(number * stride, len(crowd)))
        crowd.insert(places[-1], request)
    told = Told(setup, crowd, **rest)
    told.said = [told.said[place] for place in places]
    return told


def reordered(setup: Setup, requests: Sequence[Request], order: Sequence[int], **rest: Any) -> Told:
    """What requests say that come in another order; told in the old one."""
    told = Told(setup, [requests[number] for number in order], **rest)
    told.said = [told.said[order.index(number)] for number in range(len(requests))]
    return told


Way = Callable[[Setup, Sequence[Request]], Told]
ALONE: Mapping[str, Any] = {"max_num_seqs": 1}
WAYS: dict[str, Way] = {
    "one after the other": lambda setup, requests: Told(setup, requests, **ALONE),
    "reversed": lambda setup, requests: reordered(setup, requests, range(len(requests))[::-1]),
    "shuffled, coming one by one": lambda setup, requests: reordered(
        setup, requests, [3, 0, 5, 1, 4, 2], arrivals=dict(enumerate(range(0, 12, 2))), prefill_interval_all=2
    ),
    "among seeded ones": lambda setup, requests: among(setup, requests, neighbours(10, "seeded")),
    "among unseeded ones": lambda setup, requests: among(setup, requests, neighbours(10, "unseeded")),
    "among greedy ones": lambda setup, requests: among(setup, requests, neighbours(10, "greedy")),
    "overlapping, among all kinds, small batches": lambda setup, requests: among(
        replace(setup, is_async=True), requests, neighbours(10, "mixed"), max_num_seqs=5, prefill_interval_all=3
    ),
    "overlapping, planned in Python, chunks of three": lambda setup, requests: Told(
        replace(setup, is_async=True, is_native=False), requests, chunk=3
    ),
    "chunks of the scheduler": lambda setup, requests: among(
        setup,
        requests,
        neighbours(6, "mixed"),
        chunked_prefill=True,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        prefill_interval_all=3,
    ),
}
"""Batch, order, arrival, overlap and chunks: what no row of the table but one may depend on."""
