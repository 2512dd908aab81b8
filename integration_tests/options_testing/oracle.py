"""What is to be said of tokens, worked out from their contexts alone, one row after the other, as plainly as possible.

Letters: n tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from drafts_testing.bench import EOS, Request, Setup, make_tokenizer
from drafts_testing.tables import Tables
from options_testing.runs import Logprobs, SaidOutput
from thalweg.interfaces import SamplingParams

FLOOR = -9999.0


def logits_after(tables: Tables, token_ids: Sequence[int]) -> torch.Tensor:
    """float32 [n, V] of the model after each of these tokens, knowing all before it."""
    state, states = torch.tensor([tables.start]), []
    for token_id in token_ids:
        state = tables.advance(state, torch.tensor([token_id]))
        states.append(state)
    return tables.after(torch.cat(states))


def logits_before(tables: Tables, request: Request, output: SaidOutput) -> torch.Tensor:
    """float32 [n, V] of the model before each token of an output."""
    prompt, _ = request
    return logits_after(tables, [*prompt, *output.token_ids])[len(prompt) - 1 : -1]


def edited(setup: Setup, request: Request, output: SaidOutput) -> torch.Tensor:
    """float32 [n, V] the model's logits before each token of an output after everything but temperature and filters."""
    prompt, params = request
    rows = logits_before(setup.target, request, output)
    words = _word_tokens(setup, params)
    for place, row in enumerate(rows):
        past = output.token_ids[:place]
        row[_forbidden(setup, params, words, past)] = -torch.inf
        for token_id, bias in (params.logit_bias or {}).items():
            row[token_id] += bias
        _penalise(row, params, {*prompt, *past}, past)
    return largest_only(rows, setup.sampling.force_top_k)


def largest_only(logits: torch.Tensor, count: int) -> torch.Tensor:
    """float [n, V] with -inf but for the largest of each row; 0 = all stay."""
    result = logits.clone()
    for row in result if count else ():
        row[_order(row)[count:]] = -torch.inf
    return result


def filtered(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Log-probabilities float64 [n, V] after temperature, whose product is rounded to float32, and filters."""
    tempered = logits * (1 / torch.tensor(1e-5 if params.is_greedy else params.temperature))
    logprobs = tempered.double().log_softmax(-1)
    return logprobs if params.is_greedy else torch.stack([_filtered_row(row, params) for row in logprobs])


def mass_below(logprobs: torch.Tensor, token_id: int) -> float:
    """Of the tokens that are less likely than this one, or as likely with no higher id; logprobs: float64 [V]."""
    probs: list[float] = logprobs.exp().tolist()
    own = probs[token_id]
    return sum(prob for other, prob in enumerate(probs) if prob < own or (prob == own and other <= token_id))


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
    order = _order(logprobs)
    kept, mass = [], 0.0
    for rank, token_id in enumerate(order):
        is_out = (params.top_p < 1 and mass > params.top_p) or (params.top_k != -1 and rank >= params.top_k)
        if is_out or probs[token_id] < params.min_p * probs[order[0]]:
            break
        kept.append(token_id)
        mass += probs[token_id]
    row = torch.full_like(logprobs, -torch.inf)
    row[kept] = logprobs[kept]
    return row.log_softmax(-1)


def _order(row: torch.Tensor) -> list[int]:
    """Ids from the largest on, the lower one first among equals."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))


def _word_tokens(setup: Setup, params: SamplingParams) -> list[tuple[int, ...]]:
    tokenizer = make_tokenizer(setup.target.vocab_size, setup.num_spaced)
    return [tuple(tokenizer.encode(text, add_bos=False)) for word in params.bad_words for text in (word, f" {word}")]


def _forbidden(
    setup: Setup, params: SamplingParams, words: Sequence[tuple[int, ...]], past: tuple[int, ...]
) -> list[int]:
    forbidden = set(setup.sampling.token_blacklist)
    if len(past) < params.min_tokens:
        forbidden |= set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    for *beginning, last in words:
        if len(beginning) <= len(past) and list(past[len(past) - len(beginning) :]) == beginning:
            forbidden.add(last)
    return sorted(forbidden)


def _penalise(row: torch.Tensor, params: SamplingParams, seen: set[int], past: tuple[int, ...]) -> None:
    """In place; every operation rounded to float32, as promised."""
    repetition = torch.tensor(params.repetition_penalty)
    for token_id in seen:
        row[token_id] = row[token_id] / repetition if row[token_id] > 0 else row[token_id] * repetition
    for token_id in set(past):
        row[token_id] -= torch.tensor(params.frequency_penalty) * past.count(token_id)
        row[token_id] -= torch.tensor(params.presence_penalty)
