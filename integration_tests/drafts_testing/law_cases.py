"""The setups whose output law is tested: drafters, verify lengths and filters."""

from __future__ import annotations

from dataclasses import replace

from drafts_testing import budgets, drafters
from drafts_testing.bench import Setup
from drafts_testing.sampling_runs import BATCH, LawRun
from drafts_testing.tables import Memory, Tables
from thalweg.dspark import graph_sizes
from thalweg.interfaces import SamplingParams

SIX = Tables.random(6, seed=1)
FOUR = Tables.random(4, seed=1)
"""Fewer tokens, longer texts: what a round tells can matter two rounds later."""
FIVE = Tables.random(5, seed=4, memory=Memory.TWO_TOKENS)
GOOD, GOOD_FOUR, GOOD_FIVE = SIX.with_noise(2, 0.7), FOUR.with_noise(2, 1.0), FIVE.with_noise(2, 0.7)
ONE_ALONE = ((1, 10.0), (4, 24.0))
"""Step times of one sequence with three drafts: none or all."""
TOGETHER = tuple((size, 10.0 + 20.0 * size / BATCH) for size in graph_sizes(BATCH * 2, 64))
"""Step times of a batch. Its largest size holds a third of the drafts, so whose they are matters from the start."""


def drafting(target: Tables = SIX, drafts: Tables | None = GOOD, draft_length: int = 3, **changes: object) -> Setup:
    return replace(Setup(target=target, drafts=drafts, draft_length=draft_length), **changes)


TWICE_TOLD = drafting(FOUR, GOOD_FOUR, budget=lambda: budgets.told_by(2), confide=drafters.telling)
"""Whether a round verifies its first draft depends on what the second draft of two rounds ago was."""
BEST_ALONE = drafting(FOUR, GOOD_FOUR, budget=lambda: budgets.alone(ONE_ALONE), confide=drafters.exact)
"""The complete rule with exact confidences, as if every sequence were served alone."""

FIXED = {
    "no drafts": LawRun(drafting(drafts=None, draft_length=0)),
    "one draft": LawRun(drafting(draft_length=1)),
    "five drafts, overlapping": LawRun(drafting(FIVE, GOOD_FIVE, draft_length=5, is_async=True)),
    "a contrary drafter": LawRun(drafting(drafts=SIX.inverted())),
    "the least likely token, certain": LawRun(drafting(choose=drafters.least_likely)),
    "drawn first, then certain": LawRun(drafting(choose=drafters.drawn_at_first)),
    "ids that do not exist": LawRun(drafting(choose=drafters.illegal_at_times, confide=drafters.nonsense)),
    "ids that were not drawn": LawRun(drafting(choose=drafters.overruled)),
    "top-p and top-k, among greedy ones": LawRun(
        drafting(), greedy_every=3, params=SamplingParams(ignore_eos=True, temperature=1.3, top_p=0.85, top_k=4)
    ),
    "texts that end, not before the third token": LawRun(
        drafting(is_async=True), params=SamplingParams(min_tokens=2), batch=512, prefill_interval=2
    ),
    "coupled": LawRun(drafting(draft_length=5, verification="coupled")),
}
VARYING = {
    "a telling drafter, overlapping": LawRun(replace(TWICE_TOLD, is_async=True), num_tokens=5),
    "shared out on the device": LawRun(
        drafting(FOUR, GOOD_FOUR, is_async=True, step_times=TOGETHER, confide=drafters.telling),
        num_tokens=5,
    ),
    "shared out on the device, ids that were not drawn": LawRun(
        drafting(FOUR, GOOD_FOUR, is_async=True, step_times=TOGETHER, choose=drafters.replaced, confide=drafters.even),
        num_tokens=5,
        num_seeds=2 * BATCH,
    ),
    "shared out by the host": LawRun(
        drafting(FOUR, GOOD_FOUR, step_times=TOGETHER, confide=drafters.random), num_tokens=5
    ),
}
SOAK_ONLY = {
    "three drafts": LawRun(drafting()),
    "the plan 3, 1, 6, 2": LawRun(drafting(draft_length=5, budget=lambda: budgets.planned((3, 1, 6, 2)))),
    "the best alone": LawRun(BEST_ALONE, num_tokens=5),
    "texts that end": LawRun(drafting(is_async=True), params=SamplingParams(), batch=64, prefill_interval=1),
    "texts that end, shared out on the device": LawRun(
        drafting(FOUR, GOOD_FOUR, is_async=True, step_times=TOGETHER, confide=drafters.telling),
        num_tokens=5,
        params=SamplingParams(min_tokens=1),
        batch=512,
        prefill_interval=2,
    ),
    "a low temperature": LawRun(
        drafting(drafts=SIX.with_noise(2, 1.5)), params=SamplingParams(ignore_eos=True, temperature=0.6)
    ),
    "a perfect drafter": LawRun(drafting(drafts=None, draft_length=5)),
    "a memory of two tokens": LawRun(drafting(FIVE, GOOD_FIVE, draft_length=5)),
    "top-p and top-k, contrary": LawRun(
        drafting(drafts=SIX.inverted()), params=SamplingParams(ignore_eos=True, temperature=0.8, top_p=0.6, top_k=3)
    ),
    "coupled, contrary": LawRun(drafting(drafts=SIX.inverted(), verification="coupled")),
    "a telling drafter": LawRun(TWICE_TOLD, num_tokens=5),
    "the best alone, overlapping": LawRun(replace(BEST_ALONE, is_async=True), num_tokens=5),
    "the best alone, telling": LawRun(replace(BEST_ALONE, confide=drafters.telling), num_tokens=5),
    "the plan 2, 4, 1, overlapping": LawRun(
        drafting(FOUR, GOOD_FOUR, is_async=True, budget=lambda: budgets.planned((2, 4, 1))), num_tokens=5
    ),
    "shared out on the device, exact confidences": LawRun(
        drafting(FOUR, GOOD_FOUR, is_async=True, step_times=TOGETHER, confide=drafters.exact), num_tokens=5
    ),
    "shared out on the device in Python, contrary": LawRun(
        drafting(FOUR, FOUR.inverted(), is_async=True, is_native=False, step_times=TOGETHER, confide=drafters.telling),
        num_tokens=5,
    ),
}
