"""Rows of experts as their products in bfloat16 read them."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.experts import PLACE_ALIGNMENT, ExpertPlan
from thalweg.kernels.reference.quant import MX_GROUP
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang

PIECE = 64
"""Columns that lie together: 128 bytes, the period of a swizzle."""
PART = 16
"""Columns whose even and odd ones change places. Two threads read them, and each writes one half, so that neighbouring
threads write whole sectors of memory at once: with half sectors, this takes three times as long."""
THREADS = 256
AHEAD = 4
"""Pieces that a thread reads before it writes them."""


MOST_ROWS = 256
"""Rows of the widest tile. A product reads up to so many from the first of a tile on, whether they are there or not."""


def num_places(plan: ExpertPlan) -> int:
    """Places that rows need at most if experts start at multiples of PLACE_ALIGNMENT, and those that products touch."""
    num_rows = plan.tokens.shape[0]
    aligned = num_rows + (PLACE_ALIGNMENT - 1) * min(num_rows, plan.num_experts)
    return -(-aligned // PLACE_ALIGNMENT) * PLACE_ALIGNMENT + MOST_ROWS


@functools.cache
def widen_kernel(columns: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel: a block takes eight rows of a tile.

    The order of columns is that in which packed weights come to the products: of 16 columns, first the even ones. Their
    halves are swizzled within 128 bytes.
    """
    T = tilelang().language
    num_rows, num_sorted, num_tiles = T.dynamic("num_rows"), T.dynamic("num_sorted"), T.dynamic("num_tiles")
    places = T.dynamic("places")
    chunks, pieces = 2 * PIECE // PART, columns // PIECE
    side_by_side = THREADS // (chunks * PLACE_ALIGNMENT)

    @T.prim_func
    def widen_rows(
        codes: T.Tensor((num_rows, columns), "uint8"),
        scales: T.Tensor((num_rows, columns // MX_GROUP), "uint8"),
        tiles: T.Tensor((num_tiles, 4), "int32"),
        tokens: T.Tensor((num_sorted,), "int32"),
        out: T.Tensor((columns // PIECE, places, PIECE), "bfloat16"),
        parts_of_tile: T.int32,
        gather: T.bool,
    ) -> None:
        with T.Kernel(num_tiles, parts_of_tile, threads=THREADS) as (tile, part):
            T.import_source(cuda_source("experts_rows.cuh"))
            narrow = T.alloc_local((AHEAD, PART), "uint8")
            scale = T.alloc_local((AHEAD,), "uint8")
            wide = T.alloc_local((PART // 2,), "bfloat16")
            origin, place = T.alloc_var("int32"), T.alloc_var("int32")
            thread = T.get_thread_binding()
            chunk = thread % chunks
            row = part * PLACE_ALIGNMENT + thread // chunks % PLACE_ALIGNMENT
            if row < tiles[tile, 2]:
                origin = tiles[tile, 1] + row
                place = tiles[tile, 3] + row
                if gather:
                    origin = tokens[origin]
                for step in T.serial(-(-pieces // (side_by_side * AHEAD))):
                    for i in T.unroll(AHEAD):
                        piece = (step * AHEAD + i) * side_by_side + thread // (chunks * PLACE_ALIGNMENT)
                        if piece < pieces:
                            for j in T.vectorized(PART):
                                narrow[i, j] = codes[origin, piece * PIECE + chunk // 2 * PART + j]
                            scale[i] = scales[origin, piece * (PIECE // MX_GROUP) + chunk // 4]
                    for i in T.unroll(AHEAD):
                        piece = (step * AHEAD + i) * side_by_side + thread // (chunks * PLACE_ALIGNMENT)
                        if piece < pieces:
                            T.call_extern(
                                "handle",
                                "thalweg::widen",
                                T.address_of(wide[0]),
                                T.address_of(narrow[i, 0]),
                                T.cast(scale[i], "uint32"),
                                chunk % 2 == 1,
                            )
                            for j in T.vectorized(PART // 2):
                                out[piece, place, (chunk ^ (row % PLACE_ALIGNMENT)) * (PART // 2) + j] = wide[j]

    return compiled(widen_rows, architecture)


def widened(x: Mxfp8Rows, plan: ExpertPlan, gather: bool) -> Tensor:
    """Rows of x at the places of their tiles, bfloat16 [K / 64, places, 64], swizzled; others undefined."""
    columns = x.codes.shape[1]
    out = torch.empty(columns // PIECE, num_places(plan), PIECE, dtype=torch.bfloat16, device=x.codes.device)
    parts = plan.width // PLACE_ALIGNMENT
    widen_kernel(columns)(x.codes, x.scales, plan.tiles, plan.tokens, out, parts, gather)
    return out
