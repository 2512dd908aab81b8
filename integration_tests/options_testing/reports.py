"""Whether what a run says of its tokens is what every row, worked out by itself, says of them."""

from __future__ import annotations

import pytest
import torch

from drafts_testing.bench import Request, Setup
from options_testing.oracle import (
    assert_logprobs,
    edited,
    filtered,
    largest_only,
    logits_after,
    logits_before,
    mass_below,
)
from options_testing.runs import Run, Said, SaidOutput
from thalweg.interfaces import SamplingParams


def check_reports(run: Run) -> None:
    """Assert it of log-probabilities, draws and greedy tokens, under any options of requests and engine."""
    for request, said in zip(run.requests, run.said, strict=True):
        if said.error is not None:
            continue
        _check_prompt(run.setup, request, said)
        for output in said.outputs:
            _check_output(run.setup, request, output)


def _check_prompt(setup: Setup, request: Request, said: Said) -> None:
    prompt, params = request
    if params.prompt_logprobs is None:
        assert said.prompt_logprobs is None
    elif len(prompt) == 1:
        assert said.prompt_logprobs == ()
    else:
        logits = logits_after(setup.target, prompt[:-1])
        expected = _model(logits)
        if setup.logprobs_mode == "processed":
            expected = filtered(largest_only(logits, setup.sampling.force_top_k), params)
        assert_logprobs(said.prompt_logprobs, prompt[1:], expected, params.prompt_logprobs)


def _check_output(setup: Setup, request: Request, output: SaidOutput) -> None:
    _, params = request
    logits = edited(setup, request, output)
    drawn_from = filtered(logits, params)
    if params.is_greedy:
        _check_greedy(logits, params, output)
    if params.logprobs is None:
        assert output.logprobs is None
    else:
        is_raw = setup.logprobs_mode == "raw"
        expected = _model(logits_before(setup.target, request, output)) if is_raw else drawn_from
        assert_logprobs(output.logprobs, output.token_ids, expected, params.logprobs)
    if setup.sampling.return_draws:
        below = [mass_below(row, token_id) for row, token_id in zip(drawn_from, output.token_ids, strict=True)]
        assert output.sums == pytest.approx(below, abs=1e-5)
    else:
        assert output.sums is None


def _check_greedy(logits: torch.Tensor, params: SamplingParams, output: SaidOutput) -> None:
    for place, (row, token_id) in enumerate(zip(logits, output.token_ids, strict=True)):
        forced = (params.forced_token_ids or ())[place : place + 1]
        assert token_id == (row.tolist().index(row.max()) if forced in ((), (-1,)) else forced[0])


def _model(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(-1)
