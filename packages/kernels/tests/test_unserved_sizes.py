"""Sizes of a model that kernels of Hopper do not serve are refused by name, before a kernel is built."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels import sm90 as package
from thalweg.kernels.catalog import DEVICE_MODULES
from thalweg.kernels.sm90 import experts_linear

kernels = bind("sm90")


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU pass for those of a GPU."""
    for module in (*DEVICE_MODULES, *vars(package).values()):
        if isinstance(module, ModuleType) and hasattr(module, "check_device"):
            monkeypatch.setattr(module, "check_device", lambda **tensors: None)


def rows(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


def codes(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.uint8)


def floats(*shape: int) -> Tensor:
    return torch.zeros(*shape)


CALLS: dict[str, Callable[[], object]] = {
    "x has 48 columns; a positive multiple of 32": lambda: kernels.bf16_linear(rows(2, 48), rows(32, 48)),
    "codes have shape .48, 64.; multiples of 32": lambda: kernels.pack_fp8_weight(codes(48, 64), codes(1, 2)),
    "topk is 33; at most 32": lambda: kernels.topk_gate(floats(1, 64), None, 33, 1.0),
    "half of gate_up has rows of 16 columns; a positive multiple of 32": lambda: kernels.swiglu_quantize(
        rows(2, 32), 10.0, None
    ),
    "x has rows of 48 columns; a positive multiple of 32": lambda: kernels.rms_norm(rows(2, 48), rows(48), 1e-6),
    "trunk has rows of 48 columns; a positive multiple of 32": lambda: kernels.hc_read(
        rows(2, 4, 48), floats(2, 4), rows(48), 1e-6
    ),
    "trunk has 3 streams; .* required": lambda: kernels.hc_mix(
        rows(2, 3, 64), floats(15, 192), floats(3), floats(15), 1e-6, 1e-6, 20
    ),
    "heads of 96 columns; 64, 128, ... 512": lambda: kernels.sparse_attention(
        rows(2, 8, 96), rows(4, 96), torch.zeros(2, 3, dtype=torch.int32), None, 1.0
    ),
    "scores have 1048577 columns; up to 1048576": lambda: kernels.select_topk(
        rows(1, (1 << 20) + 1), torch.ones(1, dtype=torch.int32), 512
    ),
}


@pytest.mark.parametrize("message", CALLS)
def test_a_size_that_no_kernel_serves_is_named_with_what_is(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CALLS[message]()


def test_experts_too_wide_for_shared_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_linear, "tilelang", lambda: SimpleNamespace(language=None))
    with pytest.raises(ConfigError, match="weights of experts have 12800 columns; 16 rows with so many leave no room"):
        experts_linear.decode_kernel(100, 16)
