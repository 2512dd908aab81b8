"""Every implementation for the CPU keeps what it declares: a row's bits are its own, in every run, on any threads."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernels_testing.all_rows import NOT_BY_ROW
from kernels_testing.row_cases import CARRIERS, CASES, Op, RowCase, random
from torch import Tensor

from thalweg.kernels import Implementation, bind, default_registry
from thalweg.kernels.testing import RowCall, broken_promises

ops = bind("cpu", batch_invariant=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_an_implementation_for_the_cpu_keeps_what_it_declares(case: RowCase) -> None:
    implementations = default_registry().implementations(case.op, "cpu")
    assert all(implementation.batch_invariant for implementation in implementations)
    for implementation in implementations:
        assert case.broken_promises(implementation) == [], implementation.label


def test_every_op_is_tried_or_has_no_rows() -> None:
    tried = {case.op for case in CASES}
    assert tried.isdisjoint(NOT_BY_ROW)
    assert tried | NOT_BY_ROW.keys() == set(default_registry().ops)


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
def test_indexer_scores_do_not_depend_on_where_the_keys_lie(dtype: torch.dtype, groups: int, dim: int) -> None:
    q, weights, keys = (random(1, *shape, dtype=dtype) for shape in ((groups, dim), (groups,), (300, dim)))
    moved = torch.cat((random(5, dim, dtype=dtype, seed=4), keys[0, 37:200]))
    begin, end = torch.tensor([37]), torch.tensor([180])
    expected = ops.indexer_scores(q, weights, keys[0], begin, end)
    assert torch.equal(ops.indexer_scores(q, weights, moved, begin - 32, end - 32), expected)


calls = itertools.count()


def grows(x: Tensor, weight: Tensor) -> Tensor:
    return ops.matmul(x, weight) + next(calls)


def forgets_columns(x: Tensor, weight: Tensor) -> Tensor:
    product = torch.empty(x.shape[0], weight.shape[0])
    product[:, 1:] = ops.matmul(x, weight[1:])
    return product


def wears_the_weight(x: Tensor, weight: Tensor) -> Tensor:
    return ops.matmul(x, weight.mul_(0.5))


def splits_by_threads(x: Tensor, weight: Tensor) -> Tensor:
    parts = 2 * torch.get_num_threads() - 1
    return sum(ops.matmul(some, of) for some, of in zip(x.chunk(parts, 1), weight.chunk(parts, 1), strict=True))


def library_product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


def scaled_by_the_batch(x: Tensor, weight: Tensor) -> Tensor:
    return ops.matmul(x / x.abs().max(), weight)


def divided_by_their_number(x: Tensor, weight: Tensor) -> Tensor:
    return ops.matmul(x, weight) / x.shape[0]


def mixed_with_the_row_before(x: Tensor, weight: Tensor) -> Tensor:
    product = ops.matmul(x, weight)
    return product + 1e-6 * product.roll(1, 0)


def split_by_their_number(x: Tensor, weight: Tensor) -> Tensor:
    """As a kernel does that gives a small batch to more processors, by parts of the sum."""
    parts = 4 if x.shape[0] <= 16 else 1
    return sum(ops.matmul(some, of) for some, of in zip(x.chunk(parts, 1), weight.chunk(parts, 1), strict=True))


UNSTEADY = [grows, forgets_columns, wears_the_weight, splits_by_threads]
SOCIABLE = [
    library_product,
    scaled_by_the_batch,
    divided_by_their_number,
    mixed_with_the_row_before,
    split_by_their_number,
]


def declaring(function: Op, **promises: bool) -> Implementation:
    return Implementation(op="matmul", backend="cpu", provider="tilelang", function=function, **promises)


def example() -> RowCall:
    x, weight = random(65, 256, dtype=torch.float32), random(40, 256, dtype=torch.float32)
    own = weight.clone()

    def call(op: Op, ids: Tensor) -> Tensor:
        result: Tensor = op(x[ids], own)
        return result

    return call


@pytest.mark.parametrize("function", UNSTEADY)
def test_an_implementation_that_is_not_deterministic_is_found_out(function: Op) -> None:
    broken = broken_promises(declaring(function, deterministic=True), example())
    assert broken
    assert all(each.startswith("not deterministic: ") for each in broken)


@pytest.mark.parametrize("function", SOCIABLE)
def test_an_implementation_that_is_not_batch_invariant_is_found_out(function: Op) -> None:
    broken = broken_promises(declaring(function, deterministic=True, batch_invariant=True), example())
    assert any(each.startswith("not batch-invariant: ") for each in broken)


def test_an_op_that_looks_at_the_place_of_a_row_is_found_out() -> None:
    ids, copies = torch.arange(12).view(4, 3), torch.arange(24).view(12, 2)
    chooser = default_registry().select("choose_replicas", "cpu")
    broken = broken_promises(chooser, lambda op, rows: op(ids[rows], copies, torch.full((12,), 2), 0), 4)
    assert "not batch-invariant: reversed, 1 threads" in broken


@pytest.mark.parametrize("function", [*UNSTEADY, *SOCIABLE])
def test_nobody_is_held_to_what_he_does_not_declare(function: Op) -> None:
    assert broken_promises(declaring(function), example()) == []
    if function in SOCIABLE[1:]:  # the library's product also depends on the number of threads
        assert broken_promises(declaring(function, deterministic=True), example()) == []


@pytest.mark.parametrize("threads", [(1,), (1, 2)])
def test_an_honest_one_passes(threads: tuple[int, ...]) -> None:
    honest = declaring(ops.matmul, deterministic=True, batch_invariant=True)
    assert broken_promises(honest, example(), threads=threads) == []


@pytest.mark.gpu
def test_rows_on_a_device_are_checked_there(cuda: torch.device) -> None:
    x = random(65, 256, dtype=torch.float32).to(cuda)

    def summed_by_atomics(x: Tensor) -> Tensor:
        """In the order in which the device happens to come by."""
        column = torch.arange(x.shape[1], device=x.device) % 2
        return torch.zeros(x.shape[0], 2, device=x.device).index_add_(1, column, x.repeat(1, 1))

    def call(op: Op, ids: Tensor) -> Tensor:
        result: Tensor = op(x[ids])
        return result

    promises = {"deterministic": True, "batch_invariant": True}
    assert broken_promises(declaring(torch.nn.functional.relu, **promises), call, device="cuda") == []
    assert broken_promises(declaring(lambda rows: rows - rows.mean(), **promises), call, device="cuda")
    assert broken_promises(declaring(summed_by_atomics, **promises), call, device="cuda")
