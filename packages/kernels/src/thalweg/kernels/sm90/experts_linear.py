"""Products of routed experts on Hopper, on MXFP4 weights in packed tiles and rows in MXFP8.

The bodies are CUDA C++: TileLang has no pipeline that goes on from one tile of work to the next, and none in which
a product's result is scaled group by group while the next weights are decoded in registers.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.expert_weights import TILE_BYTES, TILE_COLUMNS, TILE_ROWS, ExpertWeights
from thalweg.kernels.reference.experts import ExpertPlan, check_rows
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.experts_rows import widen_kernel, widened
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, processors

DECODE_WIDTH = 16
"""Tiles of at most so many rows are multiplied in FP8."""
PREFILL_SHAPES = {64: (4, 2), 128: (4, 4), 256: (2, 2)}
"""By the width of tiles, for products in bfloat16: blocks of 64 weight rows taken at once, and parts of a stage."""
SHARED_BYTES = 227 * 1024
"""Shared memory that one block may have."""
MULTIPROCESSORS = 132


@functools.cache
def decode_kernel(
    steps: int,
    width: int,
    blocks: int = MULTIPROCESSORS,
    groups: int = 3,
    max_stages: int = 32,
    architecture: str = ARCHITECTURE,
) -> Any:
    """The compiled kernel for tiles of at most `width` rows (8, 16) of 128 * steps columns.

    blocks: of the grid, one per multiprocessor; groups: of four warps that multiply.
    """
    T = tilelang().language
    rows_bytes = steps * width * (TILE_COLUMNS + 4 * 4)
    partial_bytes = 2 * groups * width * (TILE_ROWS + 4) * 4
    if rows_bytes + partial_bytes > SHARED_BYTES // 4 * 3:
        raise ConfigError(
            f"weights of experts have {steps * TILE_COLUMNS} columns; {width} rows with so many leave no room for "
            "weights in the shared memory of a multiprocessor"
        )
    stages = min(max_stages, (SHARED_BYTES - 1024 - rows_bytes - partial_bytes) // (TILE_BYTES + 16))
    shared_bytes = rows_bytes + partial_bytes + stages * (TILE_BYTES + 16) + 4 * 8
    call = f"thalweg::expert_decode<{width}, {groups}, {stages}, {steps}>"
    num_rows, num_sorted, num_bytes = T.dynamic("num_rows"), T.dynamic("num_sorted"), T.dynamic("num_bytes", "int64")
    num_tiles, out_features = T.dynamic("num_tiles"), T.dynamic("out_features")

    @T.prim_func
    def expert_linear_decode(
        codes: T.Tensor((num_rows, steps * TILE_COLUMNS), "uint8"),
        scales: T.Tensor((num_rows, steps * 4), "uint8"),
        weights: T.Tensor((num_bytes,), "uint8"),
        tiles: T.Tensor((num_tiles, 4), "int32"),
        used_tiles: T.Tensor((1,), "int32"),
        tokens: T.Tensor((num_sorted,), "int32"),
        out: T.Tensor((num_sorted, out_features), "bfloat16"),
        gather: T.bool,
    ) -> None:
        with T.Kernel(blocks, threads=groups * 128 + 128):
            T.import_source(cuda_source("experts_decode.cuh"))
            shared = T.alloc_shared((shared_bytes,), "uint8")
            T.call_extern(
                "handle",
                call,
                T.address_of(shared[0]),
                T.address_of(codes[0, 0]),
                T.address_of(scales[0, 0]),
                T.address_of(weights[0]),
                T.address_of(tiles[0, 0]),
                T.address_of(used_tiles[0]),
                T.address_of(tokens[0]),
                T.address_of(out[0, 0]),
                T.truncdiv(out_features, TILE_ROWS),
                gather,
            )

    return compiled(expert_linear_decode, architecture)


@functools.cache
def prefill_kernel(steps: int, width: int, blocks: int = MULTIPROCESSORS, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for tiles of at most `width` rows (64, 128, 256) of 128 * steps columns, widened before."""
    T = tilelang().language
    row_blocks, parts = PREFILL_SHAPES[width]
    stage_bytes = 2 * width * TILE_COLUMNS + -(-row_blocks * TILE_BYTES // 1024) * 1024
    stages = (SHARED_BYTES - 1024) // stage_bytes
    call = f"thalweg::expert_prefill<{width}, {row_blocks}, {parts}, {stages}, {steps}>"
    num_sorted, num_bytes = T.dynamic("num_sorted"), T.dynamic("num_bytes", "int64")
    num_tiles, out_features, places = T.dynamic("num_tiles"), T.dynamic("out_features"), T.dynamic("places")

    @T.prim_func
    def expert_linear_prefill(
        rows: T.Tensor((2 * steps, places, 64), "bfloat16"),
        weights: T.Tensor((num_bytes,), "uint8"),
        tiles: T.Tensor((num_tiles, 4), "int32"),
        used_tiles: T.Tensor((1,), "int32"),
        out: T.Tensor((num_sorted, out_features), "bfloat16"),
    ) -> None:
        with T.Kernel(blocks, threads=row_blocks * 128 + 128):
            T.import_source(cuda_source("experts_prefill.cuh"))
            shared = T.alloc_shared((stages * (stage_bytes + 16),), "uint8")
            T.call_extern(
                "handle",
                call,
                T.address_of(shared[0]),
                T.address_of(rows[0, 0, 0]),
                T.address_of(weights[0]),
                T.address_of(tiles[0, 0]),
                T.address_of(used_tiles[0]),
                T.address_of(out[0, 0]),
                T.truncdiv(out_features, TILE_ROWS),
                places,
            )

    return compiled(expert_linear_prefill, architecture)


def expert_linear(x: Mxfp8Rows, weights: ExpertWeights, plan: ExpertPlan, *, gather: bool) -> Tensor:
    """As the reference. Products of tiles of at most 16 rows are formed in FP8, others in bfloat16.

    Tensor cores keep about 14 bits of a sum in FP8; such a sum is of 32 columns, and they are added in float32. So the
    bits of a row depend on the width of tiles, which follows from the number of rows. In bfloat16, weights whose scale
    is above 2 overflow.
    """
    return _expert_linear(x, weights, plan, gather, plan.width <= DECODE_WIDTH)


def expert_linear_invariant(x: Mxfp8Rows, weights: ExpertWeights, plan: ExpertPlan, *, gather: bool) -> Tensor:
    """As the reference, always in bfloat16, where sums are formed in one order whatever the tile."""
    return _expert_linear(x, weights, plan, gather, False)


def _expert_linear(x: Mxfp8Rows, weights: ExpertWeights, plan: ExpertPlan, gather: bool, is_fp8: bool) -> Tensor:
    check_rows(x, weights, plan, gather)
    check_device(
        codes=x.codes,
        scales=x.scales,
        weights=weights.tiles,
        tokens=plan.tokens,
        tiles=plan.tiles,
        num_tiles=plan.num_tiles,
    )
    out = torch.empty(plan.tokens.shape[0], weights.out_features, dtype=torch.bfloat16, device=x.codes.device)
    if out.shape[0] == 0:
        return out
    steps, tiles = weights.in_features // TILE_COLUMNS, weights.tiles.view(-1)
    blocks = processors(out.device)
    with torch.cuda.device(out.device):
        if is_fp8:
            kernel = decode_kernel(steps, plan.width, blocks)
            kernel(x.codes, x.scales, tiles, plan.tiles, plan.num_tiles, plan.tokens, out, gather)
        else:
            kernel = prefill_kernel(steps, max(plan.width, min(PREFILL_SHAPES)), blocks)
            kernel(widened(x, plan, gather), tiles, plan.tiles, plan.num_tiles, out)
    return out


IMPLEMENTATIONS = (
    implementation(expert_linear, priority=1, batch_invariant=False),
    implementation(expert_linear_invariant, "expert_linear"),
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "expert_linear_decode_gate_up": lambda architecture: decode_kernel(40, 8, architecture=architecture),
    "expert_linear_decode_down": lambda architecture: decode_kernel(18, 16, architecture=architecture),
    "expert_linear_prefill_gate_up": lambda architecture: prefill_kernel(40, 256, architecture=architecture),
    "expert_linear_prefill_down": lambda architecture: prefill_kernel(18, 64, architecture=architecture),
    "widen_rows": lambda architecture: widen_kernel(5120, architecture),
}

HOPPER_KERNELS = frozenset(name for name in COMPILE_EXAMPLES if name.startswith("expert_linear"))
"""Those whose bodies use instructions that only sm_90a has."""
