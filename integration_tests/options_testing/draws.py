"""What draws say of drafts, held to the tables of the drafter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Literal

from options_testing.cases import LONG, SETUP, TARGET, requests
from options_testing.modes import MODES
from options_testing.oracle import filtered, logits_before
from options_testing.runs import Run
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.interfaces import TokenDraw

ALPHA = 0.99995
"""How much of the draft's distribution a refusal takes off the target's."""
FIRST_DRAFTED = 2
"""Output tokens before come from the prompt, and from a step whose drafts are placeholders."""
PARAMS = replace(LONG, temperature=0.8, top_p=0.9)


@cache
def run_with_draws(verification: Literal["rejection", "coupled"]) -> Run:
    """Six requests, the last one greedy, with five drafts a step."""
    setup = replace(SETUP, verification=verification, sampling=SamplingConfig(return_draws=True))
    return Run(MODES["drafts"]["five"].change(setup), requests(PARAMS, 1))


def drafted_draws(run: Run, *, is_greedy: bool) -> Iterator[tuple[TokenDraw, float, float]]:
    """Draws of tokens in whose place a draft may have been judged, each with two numbers of the drafter's tables.

    The log-probability with which the drafter proposes such a token, and the probability that its proposal holds.
    """
    assert run.setup.drafts is not None
    for request, said, final in zip(run.requests, run.said, run.finals, strict=True):
        if request[1].is_greedy is not is_greedy:
            continue
        [output], draws = said.outputs, final.outputs[0].draws
        assert draws is not None
        target = filtered(logits_before(TARGET, request, output), request[1])
        drafts = filtered(logits_before(run.setup.drafts, request, output), request[1])
        held = 1 - (target.exp() - ALPHA * drafts.exp()).clamp(min=0).sum(-1)
        for place in range(FIRST_DRAFTED, len(draws)):
            yield draws[place], float(drafts[place, output.token_ids[place]]), float(held[place])
