"""Every kernel for Hopper keeps what it declares: a row's bits are its own, in every run."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.all_rows import NOT_BY_ROW, examples_of, is_taken

from thalweg.kernels import Implementation, default_registry

KERNELS = [
    implementation for op in default_registry().ops for implementation in default_registry().implementations(op, "sm90")
]


def test_every_kernel_that_declares_something_has_examples() -> None:
    assert all(examples_of(kernel.op) for kernel in KERNELS if kernel.op not in NOT_BY_ROW)


def test_every_kernel_is_deterministic_and_may_be_captured_in_a_graph() -> None:
    assert [kernel.label for kernel in KERNELS if not (kernel.deterministic and kernel.graph_safe)] == []


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize(
    "kernel", [kernel for kernel in KERNELS if kernel.op not in NOT_BY_ROW], ids=lambda kernel: kernel.function.__name__
)
def test_a_kernel_keeps_what_it_declares(kernel: Implementation, hopper: torch.device) -> None:
    cases = [case for case in examples_of(kernel.op) if is_taken(case, kernel, hopper)]
    assert cases, "no example has sizes and number formats that the kernel takes"
    for case in cases:
        assert case.broken_promises(kernel, device=str(hopper)) == [], case.label
