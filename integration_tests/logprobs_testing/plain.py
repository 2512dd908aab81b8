"""What a token is drawn from and what is reported of it, worked out row by row in plain torch.

Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thalweg.interfaces import SamplingParams

Words = Sequence[Sequence[int]]
FLOOR = -9999.0


def shaped(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    eos: int,
    bad_words: Words = (),
) -> torch.Tensor:
    """float64 [V] of the model's logits float32 [V]: after masks, bias and penalties, before the temperature.

    output: the tokens before this one. bad_words: as tokens.
    """
    row = logits.double().clone()
    if len(output) < params.min_tokens:
        row[list(params.stop_token_ids)] = -torch.inf
        if not params.ignore_eos:
            row[eos] = -torch.inf
    for *beginning, last in bad_words:
        if not beginning or list(output[-len(beginning) :]) == beginning:
            row[last] = -torch.inf
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    for token in {*prompt, *output}:
        row[token] = (
            row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
        )
    for token in set(output):
        row[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    return row


def processed(row: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Log-probabilities float64 [V] of shaped logits [V], after temperature and filters."""
    if params.is_greedy:
        return (row / 1e-5).log_softmax(-1)
    probs = (row / params.temperature).softmax(-1)
    values, ids = torch.sort(probs, descending=True, stable=True)
    ranks = torch.arange(row.numel())
    keep = (values.cumsum(0) - values <= params.top_p) & (values >= params.min_p * values[0])
    if params.top_k != -1:
        keep &= ranks < params.top_k
    keep[0] = True
    filtered = torch.full_like(row, -torch.inf)
    filtered[ids[keep]] = row[ids[keep]] / params.temperature
    return filtered.log_softmax(-1)


def likeliest(row: torch.Tensor) -> int:
    """The lowest id among the largest."""
    return int((row == row.max()).nonzero()[0])


def entry(logprobs: torch.Tensor, token: int, num_alternatives: int) -> dict[int, float]:
    """What is reported of a token: the alternatives and itself, most likely first, lower id first among equals."""
    order = torch.sort(logprobs, descending=True, stable=True).indices.tolist()
    best = {token, *order[:num_alternatives]}
    shown = [candidate for candidate in order if candidate in best]
    return {candidate: max(float(logprobs[candidate]), FLOOR) for candidate in shown}
