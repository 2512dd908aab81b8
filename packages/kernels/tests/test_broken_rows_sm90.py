"""Rows that nothing can be drawn from are found, and cleared, on Hopper as by the reference."""

from __future__ import annotations

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels import SyncGuard, bind, cuda_sync_mode
from thalweg.kernels.testing import same_bits

reference = bind("cpu").clear_broken_rows
kernel = bind("sm90").clear_broken_rows

KINDS = (torch.nan, -torch.nan, torch.inf, -torch.inf, 3.4e38, -3.4e38, 0.0, -0.0, 1e-40)


def rows_of(vocabulary: int, seed: int = 0) -> torch.Tensor:
    """Ordinary rows; rows with one odd number somewhere; rows of one odd number; rows of -inf but for one number."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3 * len(KINDS) + 2, vocabulary, generator=generator)
    for number, kind in enumerate(KINDS):
        logits[3 * number, torch.randint(vocabulary, (), generator=generator)] = kind
        logits[3 * number + 1] = kind
        logits[3 * number + 2] = -torch.inf
        logits[3 * number + 2, (number * 7919) % vocabulary] = kind
    return logits


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [1, 2, 3, 31, 64, 4095, 4096, 16_388, 129_280])
def test_rows_are_found_and_cleared_as_by_the_reference(vocabulary: int, hopper: torch.device) -> None:
    here = rows_of(vocabulary)
    there = here.to(hopper)
    with SyncGuard(*cuda_sync_mode()).forbid():
        found = kernel(there)
    assert torch.equal(found.cpu(), reference(here))
    assert same_bits(there.cpu(), here)
    wide = torch.full((3, vocabulary + 9), torch.nan)
    wide[:, 4 : 4 + vocabulary] = rows_of(vocabulary)[[0, 2, 14]]
    expected, apart = wide.clone(), wide.to(hopper)
    assert torch.equal(kernel(apart[:, 4 : 4 + vocabulary]).cpu(), reference(expected[:, 4 : 4 + vocabulary]))
    assert same_bits(apart.cpu(), expected)


@pytest.mark.gpu
def test_no_rows_are_no_work(hopper: torch.device) -> None:
    assert kernel(torch.empty(0, 8, device=hopper)).shape == (0,)


def test_what_the_kernel_cannot_take_is_named() -> None:
    with pytest.raises(ConfigError, match=r"logits are torch.float64 \[2, 3\] .*; float32 \[n, V\]"):
        kernel(torch.zeros(2, 3).double())
    with pytest.raises(ConfigError, match="got logits on cpu; one CUDA device is required"):
        kernel(torch.zeros(2, 3))
