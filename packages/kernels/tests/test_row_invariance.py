"""Every op of the forward pass gives a row the same bits whatever stands beside it, and on one or two threads."""

from __future__ import annotations

import pytest
import torch

from thalweg.kernels import bind
from thalweg.kernels.testing import rows_that_depend_on_the_batch

ops = bind("cpu", batch_invariant=True)
ROWS = 65
FEW = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64)
CARRIERS = [torch.float32, torch.float64]
carrier = pytest.mark.parametrize("dtype", [*CARRIERS, torch.bfloat16], ids=["float32", "float64", "bfloat16"])


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + shape[-1])
    return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize(
    ("depth", "width"),
    [(64, 256), (256, 24), (256, 128), (256, 513), (1280, 64), (5120, 40), (64, 1), (768, 1), (5376, 1), (768, 2)],
)
def test_a_matmul_row_is_independent_of_the_batch(dtype: torch.dtype, depth: int, width: int) -> None:
    x, weight = random(ROWS, depth, dtype=dtype), random(width, depth, dtype=dtype, seed=1)
    assert rows_that_depend_on_the_batch(lambda ids: ops.matmul(x[ids], weight), ROWS) == []


@carrier
@pytest.mark.parametrize("width", [31, 256, 5120, 20480])
def test_a_norm_row_is_independent_of_the_batch(dtype: torch.dtype, width: int) -> None:
    x, weight = random(ROWS, width, dtype=dtype), random(width, dtype=dtype)
    assert rows_that_depend_on_the_batch(lambda ids: ops.rms_norm(x[ids], weight, 1e-20), ROWS, FEW) == []


@carrier
def test_a_rotated_row_is_independent_of_the_batch(dtype: torch.dtype) -> None:
    positions = torch.arange(ROWS) * 977
    frequencies = ops.inverse_frequencies(64, 10000.0)
    x = random(ROWS, 4, 96, dtype=dtype)

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cos, sin = ops.rope_table(positions[ids], frequencies)
        return cos, sin, ops.apply_rope(x[ids], cos, sin), ops.apply_rope(x[ids][:, 0], cos, sin, inverse=True)

    assert rows_that_depend_on_the_batch(compute, ROWS) == []


@carrier
@pytest.mark.parametrize("hidden", [64, 256])
def test_hyper_connection_rows_are_independent_of_the_batch(dtype: torch.dtype, hidden: int) -> None:
    streams = 4
    x, y = random(ROWS, streams, hidden, dtype=dtype), random(ROWS, hidden, dtype=dtype)
    fn = random(24, streams * hidden, scale=0.05)
    scale, base = random(3), random(24)
    carrier_dtype = torch.float32 if dtype == torch.bfloat16 else dtype

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = ops.hc_mixes(x[ids].to(carrier_dtype), fn.to(carrier_dtype), 1e-20)
        pre, post, comb = ops.hc_coefficients(z, scale, base, streams, 20, 1e-6)
        return z, pre, post, comb, ops.hc_collapse(x[ids], pre), ops.hc_expand(x[ids], y[ids], post, comb)

    assert rows_that_depend_on_the_batch(compute, ROWS, (1, 2, 3, 5, 16, 17, 33)) == []


@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize("streams", [2, 7, 8, 16])
def test_coefficients_of_many_streams_are_independent_of_the_batch(dtype: torch.dtype, streams: int) -> None:
    width = (2 + streams) * streams
    z, scale, base = random(20, width, dtype=dtype), random(3), random(width)

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(ops.hc_coefficients(z[ids], scale, base, streams, 20, 1e-6))

    assert rows_that_depend_on_the_batch(compute, 20, (1, 2, 3, 17)) == []


@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize("experts", [8, 128, 384])
def test_routing_of_a_row_is_independent_of_the_batch(dtype: torch.dtype, experts: int) -> None:
    logits, bias = random(ROWS, experts, dtype=dtype, scale=4), random(experts, scale=0.1)

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = ops.gate_scores(logits[ids])
        return (scores, *ops.route(scores, bias, 6, 1.5))

    assert rows_that_depend_on_the_batch(compute, ROWS) == []


@carrier
@pytest.mark.parametrize("width", [33, 64, 128])
def test_a_swiglu_row_is_independent_of_the_batch(dtype: torch.dtype, width: int) -> None:
    gate, up, weights = random(ROWS, width, dtype=dtype, scale=5), random(ROWS, width, dtype=dtype), random(ROWS)
    assert rows_that_depend_on_the_batch(lambda ids: ops.swiglu(gate[ids], up[ids], 10.0, weights[ids]), ROWS) == []


@carrier
def test_an_engram_row_is_independent_of_the_batch(dtype: torch.dtype) -> None:
    x, keys, value = (random(ROWS, 4, 256, dtype=dtype, seed=i) for i in range(3))
    q_weight, k_weight = random(4, 256), random(4, 256, seed=9)

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate = ops.engram_gate(x[ids], keys[ids], q_weight, k_weight, 1e-20)
        return gate, ops.engram_apply(x[ids], value[ids][:, 0], gate)

    assert rows_that_depend_on_the_batch(compute, ROWS, FEW) == []


@pytest.mark.parametrize("name", ["fake_mxfp8", "fake_mxfp4", "fake_fp4_e4m3"])
@carrier
def test_a_cast_row_is_independent_of_the_batch(dtype: torch.dtype, name: str) -> None:
    x = random(ROWS, 96, dtype=dtype) * torch.logspace(-20, 20, ROWS, dtype=torch.float64).unsqueeze(-1).to(dtype)
    assert rows_that_depend_on_the_batch(lambda ids: getattr(ops, name)(x[ids]), ROWS, FEW) == []


@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize(("heads", "dim"), [(4, 64), (8, 32), (16, 128)])
def test_attention_of_a_row_is_independent_of_the_batch(dtype: torch.dtype, heads: int, dim: int) -> None:
    width, rows = 72, 40
    q, keys, sink = random(rows, heads, dim, dtype=dtype), random(200, dim, dtype=dtype), random(heads, dtype=dtype)
    generator = torch.Generator().manual_seed(5)
    indices = torch.randint(-40, 200, (rows, width), generator=generator).clamp(min=-1).to(torch.int32)
    indices[3] = -1

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(ops.sparse_attention_stats(q[ids], keys, indices[ids], sink, dim**-0.5))

    assert rows_that_depend_on_the_batch(compute, rows, FEW[:-4]) == []


@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize("shift", [0, 1, 50])
def test_attention_does_not_depend_on_where_the_keys_lie(dtype: torch.dtype, shift: int) -> None:
    q, keys = random(20, 8, 64, dtype=dtype), random(90, 64, dtype=dtype)
    indices = torch.arange(20).unsqueeze(-1) + torch.arange(32)
    moved = torch.cat((random(shift, 64, dtype=dtype, seed=3), keys))
    expected = ops.sparse_attention(q, keys, indices, None, 0.125)
    assert torch.equal(ops.sparse_attention(q, moved, indices + shift, None, 0.125), expected)


@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize(("groups", "dim"), [(8, 32), (32, 128), (4, 32)])
def test_indexer_scores_depend_on_the_query_and_its_own_keys_only(dtype: torch.dtype, groups: int, dim: int) -> None:
    rows = 48
    q, weights, keys = (
        random(rows, groups, dim, dtype=dtype),
        random(rows, groups, dtype=dtype),
        random(300, dim, dtype=dtype),
    )
    begin = torch.tensor([0, 100, 37, 100] * 12)
    end = begin + 1 + torch.arange(rows) * 4 % 190
    widest = int((end - begin).max())

    def compute(ids: torch.Tensor) -> torch.Tensor:
        scores = ops.indexer_scores(q[ids], weights[ids], keys, begin[ids], end[ids])
        return torch.nn.functional.pad(scores, (0, widest - scores.shape[1]), value=-torch.inf)

    assert rows_that_depend_on_the_batch(compute, rows, FEW[:-3]) == []
    alone = torch.cat((random(5, dim, dtype=dtype, seed=4), keys[37:200]))
    moved = ops.indexer_scores(q[2:3], weights[2:3], alone, torch.tensor([5]), torch.tensor([5 + int(end[2]) - 37]))
    assert torch.equal(moved[0], compute(torch.tensor([2]))[0, : moved.shape[1]])


def test_selection_of_a_row_is_independent_of_the_batch() -> None:
    scores = random(ROWS, 120, dtype=torch.bfloat16).double()
    visible = torch.arange(ROWS) * 2 % 121

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        blocks = ops.select_candidate_blocks(ops.block_scores(scores[ids], visible[ids], 8), visible[ids], 8, 6)
        restricted = ops.restrict_to_blocks(scores[ids], blocks, 8)
        return blocks, restricted, ops.select_topk(restricted, visible[ids], 16)

    assert rows_that_depend_on_the_batch(compute, ROWS, FEW) == []


@pytest.mark.parametrize("vocabulary", [64, 1000, 9001])
def test_sampling_of_a_row_is_independent_of_the_batch(vocabulary: int) -> None:
    rows = 33
    logits = random(rows, vocabulary, dtype=torch.float32, scale=3)
    temperature = torch.tensor([0.0, 0.7, 1.0] * 11)
    top_p = torch.tensor([1.0, 0.9, 0.5, 1.0] * 9)[:rows]
    top_k = torch.tensor([-1, 5, 40, -1, -1] * 7)[:rows]
    min_p = torch.tensor([0.0, 0.0, 0.02, 0.3] * 9)[:rows]
    seeds, positions = torch.arange(rows) * 7919 - 3, torch.arange(rows)

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = (temperature[ids], top_p[ids], top_k[ids], min_p[ids])
        return (
            ops.filtered_logprobs(logits[ids], *rest),
            ops.sample_tokens(logits[ids], *rest, seeds[ids], positions[ids]),
            ops.log_softmax(logits[ids]),
        )

    assert rows_that_depend_on_the_batch(compute, rows, (1, 2, 3, 17, 32)) == []
