"""Sampling reads nothing back: it runs on tensors without contents, on a device, and in a graph."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.sampling_step import SAMPLING_MODULES, run_sampling_step, sampling_step
from torch import Tensor

from thalweg.kernels import SyncGuard, cuda_sync_mode
from thalweg.kernels.catalog import GRAPH_SAFE_OPS


def check(there: list[Tensor], here: list[Tensor]) -> None:
    """Integers and flags equal, floats up to the last bits of the device's exp, log and division."""
    for found, expected in zip(there, here, strict=True):
        if expected.is_floating_point():
            assert torch.equal(torch.isinf(found.cpu()), torch.isinf(expected))
            assert torch.allclose(found.cpu(), expected, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found.cpu(), expected)


def test_every_sampling_op_is_safe_for_graphs_and_tried_here() -> None:
    names = {name for module in SAMPLING_MODULES for name in module.OPS}
    assert names <= GRAPH_SAFE_OPS
    assert names <= set(run_sampling_step.__code__.co_names)


def test_sampling_runs_on_tensors_without_contents() -> None:
    with torch.device("meta"):
        there = run_sampling_step(sampling_step("meta"))
    for meta, real in zip(there, run_sampling_step(sampling_step("cpu")), strict=True):
        assert meta.device.type == "meta"
        assert (meta.shape, meta.dtype) == (real.shape, real.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [40, 129_280])
@pytest.mark.parametrize("num_rows", [1, 24])
def test_on_cuda_nothing_blocks_and_the_results_are_those_of_the_cpu(
    cuda: torch.device, num_rows: int, vocabulary: int
) -> None:
    given = sampling_step(cuda, num_rows=num_rows, vocabulary=vocabulary)
    with SyncGuard(*cuda_sync_mode()).forbid():
        got = run_sampling_step(given)
    check(got, run_sampling_step(sampling_step("cpu", num_rows=num_rows, vocabulary=vocabulary)))
