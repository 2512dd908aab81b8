"""Row kernels in a CUDA graph: nothing blocks, and a replay follows the contents of the arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernels_testing.device_rows import equal, here, kernels, there
from kernels_testing.row_cases import integers, random
from torch import Tensor

from thalweg.kernels import HcMix, SyncGuard, cuda_sync_mode, default_registry
from thalweg.kernels.sm90 import (
    casts,
    draft_heads,
    engram,
    hyper_connections,
    hyper_connections_mix,
    norm,
    rope,
    swiglu,
)

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

MODULES = (casts, draft_heads, engram, hyper_connections, hyper_connections_mix, norm, rope, swiglu)
ROWS, STREAMS, HIDDEN = 9, 4, 256


def example(seed: int) -> dict[str, tuple[Any, ...]]:
    """Arguments of every op."""

    def bf16(*shape: int) -> Tensor:
        return random(*shape, dtype=torch.bfloat16, seed=seed)

    def f32(*shape: int) -> Tensor:
        return random(*shape, dtype=torch.float32, seed=seed)

    trunk, weight, mix = bf16(ROWS, STREAMS, HIDDEN), f32(HIDDEN), f32(ROWS, STREAMS)
    heads, angle, images = bf16(ROWS, 8, 64), f32(ROWS, 16), torch.arange(ROWS) % 3 == seed
    table = tuple(integers(0, 256, 40, width, seed=seed).to(torch.uint8) for width in (32, 1))
    hashes = (integers(0, 99_092, ROWS, 3, seed=seed), *(integers(1, 2**40, size, seed=size) for size in (3, 12, 12)))
    coefficients = HcMix(mix, mix, f32(ROWS, STREAMS, STREAMS))
    return {
        "rms_norm": (trunk, weight, 1e-6),
        "norm_quantize": (trunk[:, 0].contiguous(), weight, 1e-6),
        "quantize_mxfp8": (trunk,),
        "swiglu_quantize": (trunk[:, 0].contiguous(), 10.0, mix[:, 0].contiguous()),
        "rotate_rows": (heads, angle.cos(), angle.sin()),
        "rotate_quantize_mxfp4": (heads, angle.cos(), angle.sin()),
        "unrotate_quantize": (heads, angle.cos(), angle.sin()),
        "hc_read": (trunk, mix, weight, 1e-6),
        "hc_collapse": (trunk, mix),
        "hc_advance": (trunk, trunk[:, 1].contiguous(), coefficients, weight, 1e-6),
        "hc_mix": (trunk, f32(24, STREAMS * HIDDEN), f32(3), f32(24), 1e-6, 1e-6, 20),
        "engram_hash": (*hashes, images),
        "engram_lookup": (*table, integers(-1, 40, ROWS, 12, seed=seed)),
        "engram_update": (trunk, bf16(ROWS, 5 * HIDDEN), *(f32(STREAMS, HIDDEN) for _ in range(2)), 1e-6, images),
        "target_feature": (trunk,),
        "confidence": (trunk[:, 0].contiguous(), None, weight, 1.5),
    }


def run(op: str, given: tuple[Any, ...]) -> Any:
    """The result, or a copy of what was written to."""
    if op != "rotate_rows":
        return getattr(kernels, op)(*given)
    rows = given[0].clone()
    kernels.rotate_rows(rows, *given[1:])
    return rows


def refill(target: Any, value: Any) -> None:
    """Copy the tensors of a value to those of a target."""
    for one, other in zip(target, value, strict=True):
        if isinstance(one, Tensor):
            one.copy_(other)
        elif isinstance(one, tuple):
            refill(one, other)


def test_every_row_kernel_is_tried() -> None:
    implementations = {one.op for module in MODULES for one in module.IMPLEMENTATIONS}
    assert implementations == set(example(0))
    assert all(default_registry().select(op, "sm90").graph_safe for op in implementations)


@pytest.mark.parametrize("op", example(0))
def test_a_graph_of_a_row_kernel_blocks_nothing_and_follows_its_inputs(op: str, hopper: torch.device) -> None:
    given, second = (there(example(seed)[op], hopper) for seed in range(2))
    run(op, given)  # compiles: not while capturing
    graph = torch.cuda.CUDAGraph()
    with SyncGuard(*cuda_sync_mode()).forbid(), torch.cuda.graph(graph):
        result = run(op, given)
    for arguments in (there(example(0)[op], hopper), second):
        refill(given, arguments)
        graph.replay()
        assert equal(here(result), here(run(op, arguments)))
