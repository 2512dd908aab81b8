"""Kernels of the cache and of a step's metadata on Hopper keep what they declare: a row's bits are its own."""

from __future__ import annotations

import kernels_testing.attention_rows
import kernels_testing.cache_rows
import kernels_testing.norm_rope_rows  # noqa: F401
import pytest
import torch
from kernels_testing.row_cases import CASES, RowCase

from thalweg.kernels import default_registry
from thalweg.kernels.sm90 import async_inputs, cache, compressor, drafting, index_rows, metadata, norm_rope

MODULES = (async_inputs, cache, compressor, drafting, index_rows, metadata, norm_rope)
OPS = {implementation.op for module in MODULES for implementation in module.IMPLEMENTATIONS}


def is_served(case: RowCase) -> bool:
    """Whether kernels take the number formats of the case."""
    return torch.float64 not in case.parameters.values() and "FLOAT64" not in case.parameters.values()


SERVED = [case for case in CASES if case.op in OPS and is_served(case)]


def test_every_kernel_is_tried() -> None:
    assert {case.op for case in SERVED} == OPS


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.label)
def test_a_kernel_keeps_what_it_declares(case: RowCase, hopper: torch.device) -> None:
    (implementation,) = default_registry().implementations(case.op, "sm90")
    assert implementation.graph_safe
    assert case.broken_promises(implementation, device=str(hopper)) == []
