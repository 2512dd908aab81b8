"""What the tables say about tokens, worked out from their contexts alone, as plainly as possible.

Letters: n tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from drafts_testing.bench import Request
from options_testing.cases import TARGET
from options_testing.runs import Logprobs, SaidOutput
from thalweg.interfaces import SamplingParams

FLOOR = -9999.0


def model_logprobs(token_ids: Sequence[int]) -> torch.Tensor:
    """float64 [n, V] what the model says after each of these tokens, knowing all before it."""
    state, states = torch.tensor([TARGET.start]), []
    for token_id in token_ids:
        state = TARGET.advance(state, torch.tensor([token_id]))
        states.append(state)
    return TARGET.after(torch.cat(states)).double().log_softmax(-1)


def before_outputs(request: Request, output: SaidOutput) -> torch.Tensor:
    """float64 [n, V] what the model said before each token of an output."""
    prompt, _ = request
    return model_logprobs([*prompt, *output.token_ids])[len(prompt) - 1 : -1]


def filtered(logprobs: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """float64 [n, V] after temperature and filters, renormalised; one row after the other."""
    if params.is_greedy:
        return (logprobs / 1e-5).log_softmax(-1)
    return torch.stack([_filtered_row(row, params) for row in (logprobs / params.temperature).log_softmax(-1)])


def assert_logprobs(found: Logprobs, token_ids: Sequence[int], expected: torch.Tensor, count: int | None) -> None:
    """The report of tokens [n] with so many alternatives is what float64 [n, V] says.

    Which alternatives there are is decided before values are raised to the floor, in which order they come afterwards.
    """
    assert found is not None
    assert count is not None
    assert len(found) == len(token_ids)
    for row, token_id, logprobs in zip(found, token_ids, expected.tolist(), strict=True):
        best = sorted(range(len(logprobs)), key=lambda other: (-logprobs[other], other))
        values = {other: max(logprobs[other], FLOOR) for other in {*best[:count], token_id}}
        wanted = sorted(values.items(), key=lambda item: (-item[1], item[0]))
        assert [other for other, _ in row] == [other for other, _ in wanted]
        assert [value for _, value in row] == pytest.approx([value for _, value in wanted], abs=1e-5, rel=1e-6)


def _filtered_row(logprobs: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    probs = logprobs.exp().tolist()
    order = sorted(range(len(probs)), key=lambda token_id: (-probs[token_id], token_id))
    kept, mass = [], 0.0
    for rank, token_id in enumerate(order):
        is_out = mass > params.top_p or (params.top_k != -1 and rank >= params.top_k)
        if is_out or probs[token_id] < params.min_p * probs[order[0]]:
            break
        kept.append(token_id)
        mass += probs[token_id]
    row = torch.full_like(logprobs, -torch.inf)
    row[kept] = logprobs[kept]
    return row.log_softmax(-1)
