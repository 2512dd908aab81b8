"""Properties of single parts that the vectors of the whole model do not show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from thalweg.kernels import bind
from thalweg.model import ForwardBatch, Model, Numerics, SequenceMemory, Trace


@pytest.fixture
def values() -> torch.Tensor:
    return torch.randn(7, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_plain_points_are_identities(values: torch.Tensor) -> None:
    for arithmetic in ("exact", "float32"):
        n = Numerics("plain", arithmetic, bind("cpu"))
        for point in (n.bf16, n.f32, n.mxfp8, n.mxfp4, n.fp4_main):
            assert point(values) is values


def test_quant_points_round_and_keep_the_carrier(values: torch.Tensor) -> None:
    n = Numerics("quant", "exact", bind("cpu"))
    assert n.dtype == torch.float64
    assert torch.equal(n.bf16(values), values.float().bfloat16().double())
    assert torch.equal(n.f32(values), values.float().double())
    for point in (n.mxfp8, n.mxfp4, n.fp4_main):
        rounded = point(values)
        assert rounded.dtype == torch.float64
        assert not torch.equal(rounded, values)
        assert torch.equal(n.bf16(rounded), rounded)


def test_float32_carriers_have_no_float32_points(values: torch.Tensor) -> None:
    n = Numerics("quant", "float32", bind("cpu"))
    assert n.dtype == torch.float32
    narrow = values.float()
    assert n.f32(narrow) is narrow


def test_placeholder_rows_choose_no_expert_and_change_nobody(
    load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor
) -> None:
    model, trace = load_tiny("quant"), Trace()
    ngrams = torch.from_numpy(model.vocabulary.ngram_ids(tiny_tokens[:9].numpy(), 3))
    batch = ForwardBatch(tiny_tokens[:9], torch.arange(9), ngrams)
    alone = model.forward(batch, SequenceMemory(model.config, [9], model.numerics))
    valid = torch.ones(9, dtype=torch.bool)
    valid[-2:] = False
    padded = dataclasses.replace(batch, valid_mask=valid)
    hidden = model.forward(padded, SequenceMemory(model.config, [9], model.numerics), trace)
    assert torch.equal(hidden[:7], alone[:7])
    for layer in range(model.config.num_hidden_layers):
        assert (trace["expert_idx", layer][7:] == -1).all()
        assert (trace["expert_w", layer][7:] == 0).all()


@pytest.mark.parametrize("lengths", [[1], [2, 1, 3], [16, 15, 17], [31, 32, 33]], ids=str)
def test_sequences_of_a_batch_equal_themselves_alone(
    lengths: list[int], load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor
) -> None:
    model = load_tiny("quant")
    sequences = [tiny_tokens[index : index + length] for index, length in enumerate(lengths)]
    together = model.forward_sequences(sequences)
    for tokens, logits in zip(sequences, together, strict=True):
        assert torch.equal(model.forward_sequences([tokens])[0], logits)


def test_windows_hold_the_newest_positions_oldest_first(load_tiny: Callable[..., Model]) -> None:
    model: Model = load_tiny("quant")
    memory = SequenceMemory(model.config, [20, 3], model.numerics)
    _, indices = memory.window(0, torch.zeros(23, 64, dtype=torch.float64))
    assert indices.shape == (23, 16)
    assert indices[19].tolist() == list(range(4, 20))
    assert indices[2].tolist() == [0, 1, 2] + [-1] * 13
    assert indices[21].tolist() == [20, 21] + [-1] * 14


def test_an_open_group_has_no_entry(load_tiny: Callable[..., Model]) -> None:
    model: Model = load_tiny("quant")
    memory = SequenceMemory(model.config, [5, 1, 4], model.numerics)
    assert memory.entry_positions(2).tolist() == [0, 2, 0, 2]
    memory.append_index_keys(2, torch.zeros(4, 32, dtype=torch.float64))
    _, begin, end = memory.index_keys(2)
    assert begin.tolist() == [0] * 5 + [2] + [2] * 4
    assert (end - begin).tolist() == [0, 1, 1, 2, 2, 0, 0, 1, 1, 2]
