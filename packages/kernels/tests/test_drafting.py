"""Ops of a drafter: recorded results, a plain loop over positions, and what must not matter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels.testing import RecordLoader, VectorLoader, rows_that_depend_on_the_batch, same_bits

ops = bind("cpu", batch_invariant=True)


def test_recorded_features_are_reproduced(vectors: VectorLoader) -> None:
    d = vectors("dspark/heads")
    trunk, expected = d["hc_streams_bf16_as_f32"], d["target_feature_bf16_as_f32"]
    assert torch.equal(ops.target_feature(trunk.bfloat16()).float(), expected)
    assert torch.equal(ops.round_bf16(ops.target_feature(trunk)), expected)
    assert torch.equal(ops.round_bf16(ops.target_feature(trunk.double())).float(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_feature_keeps_the_dtype_and_rounds_once(dtype: torch.dtype) -> None:
    trunk = torch.randn(5, 3, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    got = ops.target_feature(trunk)
    assert got.dtype == dtype
    exact = trunk.double().mean(1)
    assert float((got.double() - exact).abs().max()) <= torch.finfo(dtype).eps * float(exact.abs().max())
    if dtype == torch.bfloat16:
        assert torch.equal(got, exact.float().bfloat16())


# Another order of summation than the recording's, hence a tolerance. The steep temperature has no tolerance to use up.
@pytest.mark.parametrize("temperature", ["1.0", "0.85", "2.5", "1e-05"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_recorded_confidences_are_reproduced(temperature: str, dtype: torch.dtype, vectors: VectorLoader) -> None:
    d = vectors("dspark/heads")
    hidden, markov = (d[f"{key}_bf16_as_f32"].to(dtype) for key in ("hidden", "markov"))
    got = ops.confidence(hidden, markov, d["weight_bf16_as_f32"][:, 0], float(temperature))
    assert got.dtype == torch.float32
    assert torch.allclose(got, d[f"conf_T{temperature}"], rtol=0, atol=1e-4)


def test_recorded_confidences_without_a_markov_head_are_reproduced(vectors: VectorLoader) -> None:
    d = vectors("dspark/heads")
    got = ops.confidence(d["hidden_bf16_as_f32"], None, d["weight_bf16_as_f32"][:512, 0], 1.0)
    assert torch.allclose(got, d["conf_nomarkov_T1.0"], rtol=0, atol=1e-4)


def test_a_confidence_stays_off_its_bounds_and_keeps_nan() -> None:
    hidden = torch.tensor([[1e30], [-1e30], [0.0], [math.nan]])
    got = ops.confidence(hidden, None, torch.ones(1), 1e-5).tolist()
    assert got[:3] == pytest.approx([1.0, math.exp(-60), 0.5], rel=1e-5, abs=0)
    assert math.isnan(got[3])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_features_and_confidences_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    trunk = torch.randn(33, 4, 256, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(512, generator=generator)

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, markov = trunk[ids][:, 0], trunk[ids][:, 1]
        return ops.target_feature(trunk[ids]), ops.confidence(hidden, markov, weight, 1.5)

    assert rows_that_depend_on_the_batch(compute, 33, (1, 2, 3, 8, 17, 32)) == []


@pytest.mark.parametrize("number", range(10))
def test_recorded_draft_indices_are_reproduced(number: int, recorded: RecordLoader) -> None:
    cases = recorded("dspark/draft_metadata")
    assert len(cases) == 10
    case = cases[number]
    ring, draft_length, window = case["swa_block_size"], case["dflash_block_size"], case["window_size"]
    states, positions = [], []
    for first, accepted in zip(case["ftp"], case["last_valid_offset"], strict=True):
        if first < 0:
            states.append(0)
            positions.append(-1)
            continue
        base = case["slot_mapping_swa"][first] - case["positions"][first] % ring
        assert base % ring == 0
        states.append(base // ring)
        positions.append(case["positions"][first] + accepted)
    got = ops.draft_metadata(
        torch.tensor(states, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32),
        draft_length=draft_length,
        window_size=window,
        ring_length=ring,
    )
    assert got.slots.tolist() == case["draft_slot"]
    assert got.positions.tolist() == case["draft_positions"]
    assert got.is_valid.tolist() == case["valid_token_mask"]
    assert got.key_slots.repeat_interleave(draft_length, dim=0).tolist() == case["kv_index"]
    assert {got.slots.dtype, got.positions.dtype, got.key_slots.dtype} == {torch.int32}


@given(st.data())
def test_draft_indices_equal_those_of_a_loop_over_positions(data: st.DataObject) -> None:
    draft_length, window = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 130))
    ring = window + draft_length + data.draw(st.integers(0, 5))
    states = data.draw(st.lists(st.integers(0, 20), max_size=4))
    positions = [data.draw(st.integers(-1, 400)) for _ in states]
    slots, of_block, keys = [], [], []
    for state, last in zip(states, positions, strict=True):
        seen = [] if last < 0 else [*range(max(0, last - window + 1), last + 1 + draft_length)]
        # A position before the first keeps its column, so that a column has one distance to the anchor.
        missing = 0 if last < 0 else window + draft_length - len(seen)
        row = [-1] * missing + [state * ring + position % ring for position in seen]
        keys.append(row + [-1] * (-(-(window + draft_length) // 64) * 64 - len(row)))
        for place in range(draft_length):
            of_block.append(0 if last < 0 else last + 1 + place)
            slots.append(-1 if last < 0 else state * ring + (last + 1 + place) % ring)
        written = {*slots[-draft_length:]} - {-1}
        assert len({*row} - {-1}) == len(seen), "no position shares a slot with another that is read"
        assert written <= {*row}
    got = ops.draft_metadata(
        torch.tensor(states, dtype=torch.int64),
        torch.tensor(positions, dtype=torch.int64),
        draft_length=draft_length,
        window_size=window,
        ring_length=ring,
    )
    assert got.slots.tolist() == slots
    assert got.positions.tolist() == of_block
    assert got.is_valid.tolist() == [slot >= 0 for slot in slots]
    assert got.key_slots.tolist() == keys


def test_recorded_draft_memory_is_reproduced(vectors: VectorLoader) -> None:
    d = vectors("dspark/draft_pool_store")
    initial = {"token_ids": 999, "logprobs": 0.0, "confidence": 1.0}
    for name, value in initial.items():
        expected = d[f"{name}_pool"]
        pool = torch.full_like(expected, value).view(7, 3, *expected.shape[1:])
        ops.store_draft_rows(pool, d["write_slots"], d[name])
        assert torch.equal(pool.flatten(0, 1), expected), name


def test_slot_zero_of_a_draft_memory_takes_nothing_whatever_it_holds() -> None:
    pool = torch.arange(8.0).view(4, 2)
    pool[0] = math.nan
    before = pool.clone()
    ops.store_draft_rows(pool, torch.tensor([0, 2, 0]), torch.full((3, 2), -1.0))
    before[2] = -1
    assert same_bits(pool, before)
    ops.store_draft_rows(pool, torch.zeros(0, dtype=torch.int32), torch.zeros(0, 2))
    assert same_bits(pool, before)


def test_one_place_of_a_draft_memory_can_be_written() -> None:
    pool = torch.zeros(3, 2, 4)
    ops.store_draft_rows(pool[:, 1], torch.tensor([2, 1]), torch.tensor([[5.0] * 4, [6.0] * 4]))
    assert pool[:, :, 0].tolist() == [[0, 0], [0, 6], [0, 5]]


SIZES: dict[str, Any] = {"draft_length": 2, "window_size": 6, "ring_length": 8}


def test_bad_input_of_a_drafter_is_named() -> None:
    one, hidden = torch.zeros(1, dtype=torch.int32), torch.zeros(2, 4)
    for call, message in (
        (lambda: ops.target_feature(hidden), r"trunk has shape \[2, 4\]; \[T, S, h\] is expected"),
        (lambda: ops.target_feature(torch.zeros(1, 0, 4)), "trunk has 0 streams"),
        (lambda: ops.target_feature(torch.zeros(1, 2, 4).half()), "trunk has dtype torch.float16"),
        (lambda: ops.draft_metadata(one, one, **{**SIZES, "draft_length": 0}), "draft_length is 0; an integer from 1"),
        (
            lambda: ops.draft_metadata(one, one, **{**SIZES, "ring_length": 7}),
            "ring_length is 7; a window of 6 and 2 drafts need 8",
        ),
        (lambda: ops.draft_metadata(one, one[:0], **SIZES), r"state_slots has shape \[1\]; \[0\] is expected"),
        (lambda: ops.confidence(hidden, None, torch.ones(3), 1.0), r"weight has shape \[3\]; \[4\] is expected"),
        (lambda: ops.confidence(hidden, hidden, torch.ones(4), 1.0), r"weight has shape \[4\]; \[8\] is expected"),
        (lambda: ops.confidence(hidden, None, torch.ones(4), 0.0), r"temperature is 0.0; it must be above 0"),
        (lambda: ops.confidence(hidden, None, torch.ones(4), math.nan), r"temperature is nan; it must be above 0"),
        (
            lambda: ops.store_draft_rows(torch.zeros(3, 2), one, torch.zeros(1, 3)),
            r"rows has shape \[1, 3\]; \[1, 2\] is expected",
        ),
        (
            lambda: ops.store_draft_rows(torch.zeros(3, 2), one, torch.zeros(1, 2).double()),
            "rows has dtype torch.float64; that of pool, torch.float32, is required",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
