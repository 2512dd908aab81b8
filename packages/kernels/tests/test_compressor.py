"""The pooling: recorded steps, chunking, carriers and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.compressor import pool_decode, pool_groups, pool_prefill

GOLDEN = Path(__file__).parent / "golden"


def load(name: str) -> dict[str, torch.Tensor]:
    with np.load(GOLDEN / name) as archive:
        return {key: torch.from_numpy(archive[key]) for key in archive.files}


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().view(torch.int16).int() & 0xFFFF


@pytest.mark.parametrize("name", ["a", "b", "perm"])
def test_a_prefill_step_pools_and_stores_as_recorded(name: str) -> None:
    data = load(f"cache/compress_prefill_{name}.npz")
    offsets, contexts = data["cu_seqlens_q"], data["cu_seqlens_k"]
    first = contexts.diff() - offsets.diff()
    ring = data["state_before"].clone()
    pooled = pool_prefill(
        data["score"],
        data["latent"],
        ring,
        data["state_block_idx"],
        offsets,
        first,
        data["cu_compressed_seqlens_q"],
        int(data["ratio"]),
        row_order=data.get("mirror_cp_reverse_index"),
    )
    assert torch.equal(bits(pooled), data["kv_compressed_bf16_bits"].int())
    assert torch.equal(ring, data["state_after"])


@pytest.mark.parametrize("name", ["nb1", "nb6"])
def test_a_decode_step_stores_all_rows_and_then_pools_as_recorded(name: str) -> None:
    data = load(f"cache/compress_decode_{name}.npz")
    ring = data["state_before"].clone()
    pooled = pool_decode(
        data["score"], data["latent"], ring, data["state_block_idx"], data["context_lens"], int(data["ratio"])
    )
    assert torch.equal(bits(pooled), data["kv_compressed_bf16_bits"].int())
    assert torch.equal(ring, data["state_after"])


def run_chunks(
    score: torch.Tensor, latent: torch.Tensor, ends: list[int], ring: torch.Tensor, slot: int
) -> torch.Tensor:
    """Entries of one sequence whose chunks end at `ends`, prefilled one chunk after the other."""
    entries, first = [], 0
    for end in ends:
        count = max(1, end // 2 - first // 2)
        pooled = pool_prefill(
            score[first:end],
            latent[first:end],
            ring,
            torch.tensor([slot]),
            torch.tensor([0, end - first]),
            torch.tensor([first]),
            torch.tensor([0, count]),
            2,
        )
        entries.append(pooled[: end // 2 - first // 2])
        first = end
    return torch.cat(entries)


@pytest.mark.parametrize("sequence", [0, 1, 2])
def test_whole_prefill_and_chunks_with_token_decode_give_the_recorded_entries(sequence: int) -> None:
    data = load("model/compressor_r2.npz")
    score, latent = data[f"{sequence}_score"], data[f"{sequence}_latent"]
    want = data[f"{sequence}_compressed.bf16"].int()
    length, ring_length = score.shape[0], int(data["ring"])
    whole = torch.full((2, ring_length, 2, score.shape[1]), torch.nan)
    assert torch.equal(bits(run_chunks(score, latent, [length], whole, 1)), want)

    ring = torch.zeros(2, ring_length, 2, score.shape[1])
    ends = [int(end) for end in data[f"{sequence}_chunk_ends"]]
    entries = [run_chunks(score, latent, ends, ring, 1)]
    assert torch.equal(ring[1], data[f"{sequence}_state_after_chunks"])
    for position in range(ends[-1], length):
        row = slice(position, position + 1)
        pooled = pool_decode(score[row], latent[row], ring, torch.tensor([1]), torch.tensor([position + 1]), 2)
        if position % 2 == 1:
            entries.append(pooled)
        else:
            assert not pooled.any()
    assert torch.equal(bits(torch.cat(entries)), want)
    assert torch.equal(ring[1], data[f"{sequence}_state_final"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_chunking_of_any_batch_gives_the_bits_of_the_whole(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=4))
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(2, n, 32, generator=generator, dtype=torch.float64) for n in lengths]
    rings = torch.full((len(lengths) + 1, 7, 2, 32), torch.nan, dtype=torch.float64)
    want = [
        pool_groups(*(half[: n // 2 * 2].view(-1, 2, 32) for half in row)) for n, row in zip(lengths, rows, strict=True)
    ]
    got: list[list[torch.Tensor]] = [[] for _ in lengths]
    done = [0] * len(lengths)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        live = [i for i, n in enumerate(lengths) if done[i] < n]
        sizes = [data.draw(st.integers(1, lengths[i] - done[i])) for i in live]
        counts = [(done[i] + q) // 2 - done[i] // 2 for i, q in zip(live, sizes, strict=True)]
        pooled = pool_prefill(
            torch.cat([rows[i][0, done[i] : done[i] + q] for i, q in zip(live, sizes, strict=True)]),
            torch.cat([rows[i][1, done[i] : done[i] + q] for i, q in zip(live, sizes, strict=True)]),
            rings,
            torch.tensor(live) + 1,
            torch.tensor([0, *sizes]).cumsum(0),
            torch.tensor([done[i] for i in live]),
            torch.tensor([0, *(max(1, c) for c in counts)]).cumsum(0),
            2,
        )
        begin = 0
        for i, q, count in zip(live, sizes, counts, strict=True):
            got[i].append(pooled[begin : begin + count])
            if count == 0:
                assert not pooled[begin].any()
            begin += max(1, count)
            done[i] += q
    for pieces, whole in zip(got, want, strict=True):
        assert torch.equal(torch.cat(pieces), whole)


def test_pooling_stays_in_the_carrier_dtype_over_a_float32_ring() -> None:
    score, latent = torch.randn(2, 2, 32, dtype=torch.float64).float().double()
    ring = torch.zeros(1, 7, 2, 32)
    slots, contexts = torch.tensor([0, 0]), torch.tensor([3, 4])
    pooled = pool_decode(score, latent, ring, slots, contexts, 2)
    assert pooled.dtype == torch.float64
    assert torch.equal(pooled[1], pool_groups(score, latent))
    assert not torch.equal(pooled[1], pooled[1].float().double())


def test_one_equal_score_averages_and_a_far_larger_one_selects() -> None:
    latent = torch.tensor([[1.0, 5.0], [3.0, 7.0]])
    score = torch.tensor([[0.0, -900.0], [0.0, 900.0]])
    assert pool_groups(score, latent).tolist() == [2.0, 7.0]


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    score, latent = torch.randn(2, 65, 2, 40)
    whole = pool_groups(score, latent)
    for count in (1, 2, 3, 17, 64):
        assert torch.equal(pool_groups(score[:count], latent[:count]), whole[:count])


def test_pool_groups_is_differentiable() -> None:
    score, latent = torch.randn(2, 3, 2, 4, dtype=torch.float64).unbind(0)
    assert torch.autograd.gradcheck(pool_groups, (score.requires_grad_(), latent.requires_grad_()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": 1}, "ratio is 1"),
        ({"latent": torch.zeros(2, 5)}, "must have one shape"),
        ({"ring": torch.zeros(1, 7, 2, 5)}, "ring is"),
        ({"ring": torch.zeros(1, 7, 2, 4, dtype=torch.bfloat16)}, "float32 and float64"),
        ({"ring": torch.zeros(1, 1, 2, 4)}, "ring length is 1"),
        ({"state_slots": torch.zeros(3, dtype=torch.int32)}, r"state_slots has shape \[3\]; \[2\] is expected"),
    ],
)
def test_bad_input_of_the_pooling_is_named(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "score": torch.zeros(2, 4),
        "latent": torch.zeros(2, 4),
        "ring": torch.zeros(1, 7, 2, 4),
        "state_slots": torch.zeros(2, dtype=torch.int32),
        "context_lengths": torch.tensor([1, 2]),
        "ratio": 2,
    }
    with pytest.raises(ConfigError, match=message):
        pool_decode(**{**arguments, **change})  # type: ignore[arg-type]
