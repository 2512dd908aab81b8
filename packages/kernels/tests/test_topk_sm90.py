"""Selections and candidate blocks on Hopper: equal to the reference, whatever the scores are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_testing.indexer_rows import ascending_blocks
from kernels_testing.row_cases import FEW, ROWS, RowCase, integers, random
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import SyncGuard, bind, cuda_sync_mode, default_registry
from thalweg.kernels.testing import RowCall

reference = bind("cpu")
kernels = bind("sm90")

KINDS = (
    "normal",
    "few values",
    "equal",
    "mostly hidden",
    "all hidden",
    "infinite",
    "all magnitudes",
    "negative",
    "zeros",
)


def scores_of(kind: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    """bfloat16 [rows, columns]."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(rows, columns, generator=generator)
    uniform = torch.rand(rows, columns, generator=generator)
    zero = torch.where(normal > 0, 0.0, -0.0)
    kinds = {
        "normal": normal,
        "few values": (3 * normal).round(),
        "equal": torch.full_like(normal, 0.5),
        "mostly hidden": normal.masked_fill(uniform < 0.9, -torch.inf),
        "all hidden": torch.full_like(normal, -torch.inf),
        "infinite": normal.masked_fill(uniform < 0.01, torch.inf),
        "all magnitudes": normal * torch.exp2((200 * uniform - 100).round()),
        "negative": -normal.abs() - 1e-3,
        "zeros": zero.where(uniform < 0.995, normal),
    }
    return kinds[kind].bfloat16()


def visible_of(rows: int, columns: int, seed: int = 0) -> Tensor:
    """int32 [rows] from none to all."""
    visible = integers(0, columns + 1, rows, seed=seed).int()
    visible[: min(rows, 2)] = torch.tensor([columns, 0])[: min(rows, 2)]
    return visible


def check(scores: Tensor, visible: Tensor, k: int, device: torch.device) -> None:
    got = kernels.select_topk(scores.to(device), visible.to(device), k)
    assert torch.equal(got.cpu(), reference.select_topk(scores.float(), visible, k))


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 7, 1000, 4096, 33_000])
def test_selections_are_those_of_the_reference(kind: str, columns: int, hopper: torch.device) -> None:
    scores, visible = scores_of(kind, 9, columns), visible_of(9, columns)
    for k in (1, 64, 512, 2048, 5000):
        check(scores, visible, k, hopper)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("kind", ["normal", "few values", "equal", "infinite"])
def test_rows_of_a_million_columns_are_selected_from(kind: str, hopper: torch.device) -> None:
    scores = scores_of(kind, 2, 1 << 20)
    check(scores, torch.tensor([1 << 20, 700_001], dtype=torch.int32), 512, hopper)


@pytest.mark.gpu
@pytest.mark.sm90
def test_rows_may_start_anywhere_and_what_lies_between_them_does_not_count(hopper: torch.device) -> None:
    scores, visible = scores_of("normal", 200, 5000), visible_of(200, 5000)
    wide = torch.full((200, 5021), torch.inf, dtype=torch.bfloat16, device=hopper)
    for shift in range(9):
        wide[:, shift : shift + 5000] = scores.to(hopper)
        got = kernels.select_topk(wide[:, shift : shift + 5000], visible.to(hopper), 300)
        assert torch.equal(got.cpu(), reference.select_topk(scores.float(), visible, 300))
        wide.fill_(torch.inf)


@pytest.mark.gpu
@pytest.mark.sm90
def test_random_rows_are_selected_from_as_by_the_reference(hopper: torch.device) -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.integers(1, 300), st.integers(0, 400), st.sampled_from(KINDS), st.integers(0, 10**6))
    def examples(columns: int, k: int, kind: str, seed: int) -> None:
        check(scores_of(kind, 7, columns, seed), visible_of(7, columns, seed), k, hopper)

    examples()


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("entries", "size"), [(0, 8), (3, 8), (5001, 8), (16_384, 8), (1000, 3), (4096, 16)])
def test_candidate_blocks_are_those_of_the_reference(kind: str, entries: int, size: int, hopper: torch.device) -> None:
    scores, visible = scores_of(kind, 9, entries), visible_of(9, entries)
    there, seen = scores.to(hopper), visible.to(hopper)
    best, expected = kernels.block_scores(there, seen, size), reference.block_scores(scores.float(), visible, size)
    assert torch.equal(best.cpu().float(), expected)
    blocks = kernels.select_candidate_blocks(best, seen, size, 100)
    assert torch.equal(blocks.cpu(), reference.select_candidate_blocks(expected, visible, size, 100))
    lengths = kernels.compact_lengths(blocks, seen, size)
    assert torch.equal(lengths.cpu(), reference.compact_lengths(blocks.cpu(), visible, size))


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_compact_indices_are_restored_as_by_the_reference(rows: int, hopper: torch.device) -> None:
    visible = visible_of(rows, 500) if rows else torch.zeros(0, dtype=torch.int32)
    blocks = ascending_blocks(visible, 20, 8) if rows else torch.zeros(0, 20, dtype=torch.int32)
    compact, offset = integers(-1, 170, rows, 64).int(), integers(0, 10**6, rows)
    for arguments in ((compact, blocks, 8), (compact, blocks, 8, offset), (compact.long(), blocks, 8, offset.int())):
        there = [part.to(hopper) if isinstance(part, Tensor) else part for part in arguments]
        assert torch.equal(kernels.restore_indices(*there).cpu(), reference.restore_indices(*arguments))


def select(rows: Tensor, visible: Tensor) -> RowCall:
    return lambda op, ids: op(rows[ids], visible[ids], 40)


def candidates(rows: Tensor, visible: Tensor) -> RowCall:
    return lambda op, ids: op(rows[ids], visible[ids], 8, 12)


def blocks_of(rows: Tensor, visible: Tensor) -> RowCall:
    return lambda op, ids: op(rows[ids], visible[ids], 8)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize(
    ("op", "call"),
    [("select_topk", select), ("select_candidate_blocks", candidates), ("block_scores", blocks_of)],
)
def test_the_kernels_keep_what_they_declare(op: str, call: Any, hopper: torch.device) -> None:
    def make() -> RowCall:
        result: RowCall = call(random(ROWS, 320, dtype=torch.bfloat16), (torch.arange(ROWS) * 5 % 321).int())
        return result

    (implementation,) = default_registry().implementations(op, "sm90")
    assert RowCase(op, make, {}, ROWS, FEW, (1,)).broken_promises(implementation, device="cuda") == []


@pytest.mark.gpu
@pytest.mark.sm90
def test_a_graph_of_a_selection_waits_for_nothing_and_follows_its_inputs(hopper: torch.device) -> None:
    scores, visible = scores_of("normal", 6, 9000).to(hopper), visible_of(6, 9000).to(hopper)

    def chain() -> Tensor:
        blocks = kernels.select_candidate_blocks(kernels.block_scores(scores, visible, 8), visible, 8, 200)
        lengths = kernels.compact_lengths(blocks, visible, 8)
        ids: Tensor = kernels.restore_indices(kernels.select_topk(scores[:, :1600], lengths, 50), blocks, 8)
        return ids

    chain()  # compiles: not while capturing
    graph = torch.cuda.CUDAGraph()
    with SyncGuard(*cuda_sync_mode()).forbid(), torch.cuda.graph(graph):
        ids = chain()
    for shift in range(2):
        scores.copy_(scores.roll(shift, 0))
        visible.copy_(visible.roll(-shift, 0))
        graph.replay()
        assert torch.equal(ids, chain())


def test_what_the_kernels_cannot_take_is_named() -> None:
    visible = torch.ones(2, dtype=torch.int32)
    with pytest.raises(ConfigError, match=r"scores are torch.float32 with strides \[5, 1\]; bfloat16"):
        kernels.select_topk(torch.ones(2, 5), visible, 3)
    with pytest.raises(ConfigError, match=r"scores has shape \[5\]; \[n, S\] is expected"):
        kernels.select_topk(torch.ones(5).bfloat16(), visible, 3)
    with pytest.raises(ConfigError, match=r"scores has shape \[5\]; \[n, S\] is expected"):
        kernels.block_scores(torch.ones(5).bfloat16(), visible, 8)
    with pytest.raises(ConfigError, match="k is -1; an integer from 0 to 2147483647 is accepted"):
        kernels.select_topk(torch.ones(2, 5).bfloat16(), visible, -1)
    with pytest.raises(ConfigError, match="scores have 1048577 columns; up to 1048576 are served"):
        kernels.select_topk(torch.ones(1, 1).bfloat16().expand(2, 1048577), visible, 1)
    with pytest.raises(ConfigError, match="block_size is 0; an integer from 1 to"):
        kernels.block_scores(torch.ones(2, 5).bfloat16(), visible, 0)
    with pytest.raises(ConfigError, match="got scores on cpu, visible on cpu; one CUDA device is required"):
        kernels.select_topk(torch.ones(2, 5).bfloat16(), visible, 3)
