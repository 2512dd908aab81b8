"""Penalties, biases and bans: exact in float32, and counted as by a loop."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels.reference import penalties, vocabulary_rows

ops = bind("cpu", batch_invariant=True)
VOCABULARY, SLOTS = 9, 4

ids = st.lists(st.integers(-2, VOCABULARY + 1), max_size=6)
amounts = st.tuples(
    st.sampled_from([1.0, 1.3, 0.7]), st.sampled_from([0.0, 0.6, -1.1]), st.sampled_from([0.0, 0.35, -0.2])
)


def tables() -> tuple[Tensor, Tensor]:
    """(output_counts, in_prompt), with nobody's slot 0 empty and the others full of an earlier life."""
    counts, in_prompt = torch.full((SLOTS, VOCABULARY), 3, dtype=torch.int32), torch.ones(SLOTS, VOCABULARY).bool()
    counts[0], in_prompt[0] = 0, False
    return counts, in_prompt


def flat(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(ids, rows) of texts."""
    rows = [row for row, text in enumerate(texts) for _ in text]
    return torch.tensor([token for text in texts for token in text], dtype=torch.int64), torch.tensor(rows).long()


def plain(logits: list[float], prompt: list[int], output: list[int], chosen: tuple[float, float, float]) -> list[float]:
    """New logits, one operation at a time in float32."""
    repetition, presence, frequency = (np.float32(amount) for amount in chosen)
    counts = collections.Counter(output)
    result = []
    for token, logit in enumerate(np.array(logits, np.float32)):
        value = logit
        if token in counts or token in prompt:
            value = value / repetition if value > 0 else value * repetition
        if token in counts:
            value = value - frequency * np.float32(counts[token])
            value = value - presence
        result.append(float(value))
    return result


@given(st.lists(st.tuples(ids, ids, ids, amounts), min_size=1, max_size=3), st.integers(0, 2**32))
@settings(max_examples=60)
def test_penalised_logits_are_those_of_a_loop(
    rows: list[tuple[list[int], list[int], list[int], tuple[float, float, float]]], seed: int
) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(rows), VOCABULARY)).astype(np.float32))
    logits[0, 0], logits[0, 1], logits[0, 2] = 0.0, -torch.inf, -0.0
    prompts, outputs, steps, chosen = (list(part) for part in zip(*rows, strict=True))
    slots = torch.arange(1, len(rows) + 1)
    counts, in_prompt = tables()
    ops.reset_token_counts(counts, in_prompt, slots, *flat(prompts), *flat(outputs))
    width = max(len(step) for step in steps)
    step_ids = torch.tensor([step + [-1] * (width - len(step)) for step in steps]).view(len(rows), width)
    got = logits.clone()
    ops.apply_penalties(got, counts, in_prompt, slots, step_ids, *torch.tensor(chosen).unbind(1))
    for row, (prompt, output, step, amount) in enumerate(rows):
        assert got[row].tolist() == plain(logits[row].tolist(), prompt, output + step, amount)
    ops.count_tokens(counts, slots, step_ids)
    counted = logits.clone()
    no_ids = torch.zeros(len(rows), 0, dtype=torch.int64)
    ops.apply_penalties(counted, counts, in_prompt, slots, no_ids, *torch.tensor(chosen).unbind(1))
    assert torch.equal(counted, got), "counting tokens afterwards, or beside the table, is the same"


def test_other_slots_keep_what_they_hold() -> None:
    counts, in_prompt = tables()
    before = counts.clone(), in_prompt.clone()
    ops.reset_token_counts(counts, in_prompt, torch.tensor([2]), *flat([[1, 1]]), *flat([[5, 5, 7]]))
    assert counts[2].tolist() == [0, 0, 0, 0, 0, 2, 0, 1, 0]
    assert in_prompt[2].nonzero().flatten().tolist() == [1]
    ops.count_tokens(counts, torch.tensor([2]), torch.tensor([[7, 7, 0]]))
    assert counts[2].tolist() == [1, 0, 0, 0, 0, 2, 0, 3, 0]
    for row in (0, 1, 3):
        assert torch.equal(counts[row], before[0][row])
        assert torch.equal(in_prompt[row], before[1][row])


def test_the_slot_of_nobody_stays_empty() -> None:
    counts, in_prompt = tables()
    slots = torch.tensor([0, 1, 0])
    ops.reset_token_counts(counts, in_prompt, slots, *flat([[1], [2], [3]]), *flat([[4], [5], [6]]))
    ops.count_tokens(counts, slots, torch.tensor([[7], [8], [0]]))
    assert counts[0].tolist() == [0] * VOCABULARY
    assert not bool(in_prompt[0].any())
    assert counts[1].nonzero().flatten().tolist() == [5, 8]


def test_rows_that_share_a_slot_differ_by_the_tokens_of_the_step() -> None:
    counts, in_prompt = tables()
    ops.reset_token_counts(counts, in_prompt, torch.tensor([1]), *flat([[]]), *flat([[2]]))
    logits = torch.ones(3, VOCABULARY)
    step_ids = torch.tensor([[-1, -1], [2, -1], [2, 4]])
    ops.apply_penalties(
        logits, counts, in_prompt, torch.tensor([1, 1, 1]), step_ids, torch.ones(3), torch.zeros(3), torch.ones(3)
    )
    assert logits[:, 2].tolist() == [0.0, -1.0, -1.0]
    assert logits[:, 4].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("piece", [1, 2 * VOCABULARY, 1000])
def test_pieces_and_dense_arithmetic_give_the_same_bits(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    counts = torch.randint(0, 3, (SLOTS, VOCABULARY), generator=generator, dtype=torch.int32)
    in_prompt = torch.rand(SLOTS, VOCABULARY, generator=generator) < 0.3
    logits, slots = torch.randn(7, VOCABULARY, generator=generator), torch.arange(7) % SLOTS
    step_ids = torch.randint(-1, VOCABULARY, (7, 2), generator=generator)
    chosen = torch.tensor([[1.0, 1.5, 0.8, 1.0, 1.2, 1.0, 1.1], [0, 1, 0, 0.3, 0, 0, 2.0], [0, 0, 0.3, 0, 0, 0.7, -1]])
    monkeypatch.setattr(vocabulary_rows, "PIECE_ELEMENTS", piece)
    listed = logits.clone()
    ops.apply_penalties(listed, counts, in_prompt, slots, step_ids, *chosen)
    dense = logits.clone()
    penalties.penalise_rows(dense, counts, in_prompt, slots, step_ids, chosen)
    assert torch.equal(listed, dense)
    assert torch.equal(listed[0], logits[0]), "a row without penalties keeps its bits"


def test_biases_shift_and_bans_forbid_whatever_the_bias() -> None:
    logits = torch.zeros(3, 4)
    ops.forbid_tokens(logits, torch.tensor([0, 0, 2]), torch.tensor([1, 1, 3]))
    ops.add_biases(logits, torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), torch.tensor([100.0, -0.5, 2.0]))
    assert logits[0].tolist() == [0.0, -torch.inf, -0.5, 0.0]
    assert logits[1].tolist() == [2.0, 0.0, 0.0, 0.0]
    assert logits[2].tolist() == [0.0, 0.0, 0.0, -torch.inf]
    nothing = torch.zeros(0, dtype=torch.int64)
    before = logits.clone()
    ops.forbid_tokens(logits, nothing, nothing)
    ops.add_biases(logits, nothing, nothing, torch.zeros(0))
    assert torch.equal(logits, before)


def test_bad_arguments_are_named() -> None:
    counts, in_prompt = tables()
    one, logits = torch.ones(2), torch.zeros(2, VOCABULARY)
    slots, step_ids = torch.tensor([1, 2]), torch.zeros(2, 1).long()
    with pytest.raises(ConfigError, match=r"in_prompt has shape \[4\]; \[4, 9\] is expected"):
        ops.apply_penalties(logits, counts, in_prompt[:, 0], slots, step_ids, one, one, one)
    with pytest.raises(ConfigError, match=r"logits has shape \[2, 8\]; \[R, 9\] is expected"):
        ops.apply_penalties(logits[:, :8], counts, in_prompt, slots, step_ids, one, one, one)
    with pytest.raises(ConfigError, match=r"logits have dtype torch\.float64; float32 is required"):
        ops.apply_penalties(logits.double(), counts, in_prompt, slots, step_ids, one, one, one)
    with pytest.raises(ConfigError, match=r"presence has shape \[1\]; \[2\] is expected"):
        ops.apply_penalties(logits, counts, in_prompt, slots, step_ids, one, one[:1], one)
    with pytest.raises(ConfigError, match=r"step_ids has shape \[1, 1\]; \[2, G\] is expected"):
        ops.apply_penalties(logits, counts, in_prompt, slots, step_ids[:1], one, one, one)
    with pytest.raises(ConfigError, match=r"prompt_rows has shape \[1\]; \[2\] is expected"):
        ops.reset_token_counts(counts, in_prompt, slots, slots, slots[:1], slots, slots)
    with pytest.raises(ConfigError, match=r"token_ids has shape \[1, 1\]; \[2, k\] is expected"):
        ops.count_tokens(counts, slots, step_ids[:1])
    with pytest.raises(ConfigError, match=r"ids has shape \[1\]; \[2\] is expected"):
        ops.forbid_tokens(logits, slots, slots[:1])
    with pytest.raises(ConfigError, match=r"biases has shape \[1\]; \[2\] is expected"):
        ops.add_biases(logits, slots, slots, one[:1])
