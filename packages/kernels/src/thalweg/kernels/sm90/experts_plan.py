"""Sorting rows by expert on Hopper, and adding up what a token's experts give it."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.experts import (
    PLACE_ALIGNMENT,
    ExpertPlan,
    check_outputs,
    check_slots,
    most_tiles,
    tile_width,
)
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device

WARP = 32
THREADS = 256
AHEAD = 4
"""Slots that a lane reads at once: what the others do meanwhile does not fill the time that one takes."""
WARPS = THREADS // WARP


@functools.cache
def plan_kernel(num_experts: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel: one block per expert, and one more for what is unused.

    Each block counts the slots of all experts, which tells it where its own rows and tiles begin. Then every warp takes
    a range of slots, in order, and places those of its expert behind those of the warps before it.
    """
    T = tilelang().language
    num_slots, num_tiles = T.dynamic("num_slots"), T.dynamic("num_tiles")
    bins = -(-(num_experts + 1) // THREADS) * THREADS

    @T.prim_func
    def plan_experts(
        ids: T.Tensor((num_slots,), "int64"),
        weights: T.Tensor((num_slots,), "float32"),
        tokens: T.Tensor((num_slots,), "int32"),
        row_weights: T.Tensor((num_slots,), "float32"),
        positions: T.Tensor((num_slots,), "int32"),
        tiles: T.Tensor((num_tiles, 4), "int32"),
        used_tiles: T.Tensor((1,), "int32"),
        slots: T.int32,
        width: T.int32,
    ) -> None:
        with T.Kernel(num_experts + 1, threads=THREADS) as expert:
            counts = T.alloc_shared((bins,), "int32")
            found = T.alloc_shared((WARPS,), "int32")
            sums = T.alloc_shared((3, WARPS), "int32")
            thread = T.get_thread_binding()
            warp, lane = thread // WARP, thread % WARP
            own, mine, count = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            first, place, tile = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            begin, end, mask = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("uint32")
            row, slot = T.alloc_var("int32"), T.alloc_var("int32")
            ahead = T.alloc_local((AHEAD,), "int32")
            # The block behind the last expert takes the slots without one, as if they were its own.
            for step in T.serial(bins // THREADS):
                counts[step * THREADS + thread] = 0
            T.sync_threads()
            begin = T.ceildiv(T.ceildiv(num_slots, WARPS), WARP) * WARP * warp
            end = T.min(begin + T.ceildiv(T.ceildiv(num_slots, WARPS), WARP) * WARP, num_slots)
            mine = 0
            for step in T.serial(T.ceildiv(T.max(end - begin, 0), WARP * AHEAD)):
                for i in T.unroll(AHEAD):
                    ahead[i] = -2
                    if begin + (step * AHEAD + i) * WARP + lane < end:
                        ahead[i] = T.cast(ids[begin + (step * AHEAD + i) * WARP + lane], "int32")
                for i in T.unroll(AHEAD):
                    own = T.if_then_else(ahead[i] == -1, num_experts, ahead[i])
                    if own >= 0:
                        T.atomic_add(counts[own], 1)
                    if own == expert:
                        mine += 1
            mine = T.warp_reduce_sum(mine)
            if lane == 0:
                found[warp] = mine
            T.sync_threads()
            first = 0
            place = 0
            tile = 0
            for step in T.serial(T.ceildiv(expert, THREADS)):
                if step * THREADS + thread < expert:
                    count = counts[step * THREADS + thread]
                    first += count
                    place += (count + PLACE_ALIGNMENT - 1) // PLACE_ALIGNMENT * PLACE_ALIGNMENT
                    tile += (count + width - 1) // width
            first = T.warp_reduce_sum(first)
            place = T.warp_reduce_sum(place)
            tile = T.warp_reduce_sum(tile)
            if lane == 0:
                sums[0, warp] = first
                sums[1, warp] = place
                sums[2, warp] = tile
            T.sync_threads()
            first = 0
            place = 0
            tile = 0
            for other in T.unroll(WARPS):
                first += sums[0, other]
                place += sums[1, other]
                tile += sums[2, other]
            count = counts[expert]
            if expert < num_experts:
                for step in T.serial(T.ceildiv(T.ceildiv(count, width), THREADS)):
                    row = (step * THREADS + thread) * width
                    if row < count:
                        tiles[tile + T.truncdiv(row, width), 0] = expert
                        tiles[tile + T.truncdiv(row, width), 1] = first + row
                        tiles[tile + T.truncdiv(row, width), 2] = T.min(width, count - row)
                        tiles[tile + T.truncdiv(row, width), 3] = place + row
            else:
                for step in T.serial(T.ceildiv(num_tiles - tile, THREADS)):
                    row = tile + step * THREADS + thread
                    if row < num_tiles:
                        tiles[row, 0] = -1
                        tiles[row, 1] = 0
                        tiles[row, 2] = 0
                        tiles[row, 3] = 0
                if thread == 0:
                    used_tiles[0] = tile
            row = first
            for other in T.unroll(WARPS):
                if other < warp:
                    row += found[other]
            if found[warp] > 0:
                for step in T.serial(T.ceildiv(T.max(end - begin, 0), WARP * AHEAD)):
                    for i in T.unroll(AHEAD):
                        ahead[i] = -2
                        if begin + (step * AHEAD + i) * WARP + lane < end:
                            ahead[i] = T.cast(ids[begin + (step * AHEAD + i) * WARP + lane], "int32")
                    for i in T.unroll(AHEAD):
                        own = T.if_then_else(ahead[i] == -1, num_experts, ahead[i])
                        slot = begin + (step * AHEAD + i) * WARP + lane
                        mask = T.ballot(own == expert)
                        if own == expert:
                            mine = row + T.popcount(mask & ((T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1)))
                            if expert < num_experts:
                                tokens[mine] = T.truncdiv(slot, slots)
                                row_weights[mine] = weights[slot]
                                positions[slot] = mine
                            else:
                                tokens[mine] = -1
                                row_weights[mine] = 0
                                positions[slot] = -1
                        row += T.popcount(mask)

    return compiled(plan_experts, architecture)


def plan_experts(ids: Tensor, weights: Tensor, num_experts: int) -> ExpertPlan:
    """As the reference, in one launch that reads nothing back."""
    check_slots(ids, weights, num_experts)
    check_device(ids=ids, weights=weights)
    num_rows, device = ids.numel(), ids.device
    width = tile_width(num_rows, num_experts)
    tokens, positions = (torch.empty(shape, dtype=torch.int32, device=device) for shape in (num_rows, ids.shape))
    tiles = torch.empty(most_tiles(num_rows, num_experts, width), 4, dtype=torch.int32, device=device)
    num_tiles = torch.empty(1, dtype=torch.int32, device=device)
    plan = ExpertPlan(tokens, torch.empty(num_rows, device=device), positions, tiles, num_tiles, width, num_experts)
    if num_rows == 0:
        num_tiles.zero_()
        return plan
    flat = ids.contiguous().view(-1), weights.contiguous().view(-1)
    with torch.cuda.device(device):
        plan_kernel(num_experts)(
            *flat, tokens, plan.row_weights, positions.view(-1), tiles, num_tiles, ids.shape[1], width
        )
    return plan


@functools.cache
def combine_kernel(hidden: int, slots: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel: a thread sums eight neighbouring columns of one token."""
    T = tilelang().language
    num_tokens, num_rows = T.dynamic("num_tokens"), T.dynamic("num_rows")
    vector = 8
    pieces = hidden // vector

    @T.prim_func
    def combine_experts(
        outputs: T.Tensor((num_rows, hidden), "bfloat16"),
        shared: T.Tensor((num_tokens, hidden), "bfloat16"),
        positions: T.Tensor((num_tokens, slots), "int32"),
        total: T.Tensor((num_tokens, hidden), "bfloat16"),
    ) -> None:
        with T.Kernel(num_tokens, T.ceildiv(pieces, 128), threads=128) as (token, column):
            rows = T.alloc_local((slots + 1, vector), "bfloat16")
            sums = T.alloc_local((vector,), "float32")
            piece = column * 128 + T.get_thread_binding()
            if piece < pieces:
                for i in T.vectorized(vector):
                    rows[slots, i] = shared[token, piece * vector + i]
                for slot in T.unroll(slots):
                    for i in T.vectorized(vector):
                        rows[slot, i] = T.bfloat16(0)
                    if positions[token, slot] >= 0:
                        for i in T.vectorized(vector):
                            rows[slot, i] = outputs[positions[token, slot], piece * vector + i]
                for i in T.unroll(vector):
                    sums[i] = 0
                for slot in T.unroll(slots + 1):
                    for i in T.unroll(vector):
                        sums[i] += T.cast(rows[slot, i], "float32")
                for i in T.unroll(vector):
                    rows[0, i] = T.cast(sums[i], "bfloat16")
                for i in T.vectorized(vector):
                    total[token, piece * vector + i] = rows[0, i]

    return compiled(combine_experts, architecture)


def combine_experts(outputs: Tensor, shared: Tensor, plan: ExpertPlan) -> Tensor:
    """As the reference, in one launch. The width must be a multiple of 8."""
    check_outputs(outputs, shared, plan)
    check_device(outputs=outputs, shared=shared, positions=plan.positions)
    hidden, slots = outputs.shape[1], plan.positions.shape[1]
    if hidden % 8:
        raise ConfigError(f"outputs have {hidden} columns; a multiple of 8 is required")
    if 0 in outputs.shape:
        return shared.clone()
    total = torch.empty(shared.shape, dtype=torch.bfloat16, device=shared.device)
    with torch.cuda.device(total.device):
        combine_kernel(hidden, slots)(outputs.contiguous(), shared.contiguous(), plan.positions, total)
    return total


IMPLEMENTATIONS = (
    implementation(plan_experts),
    implementation(combine_experts),
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "plan_experts": lambda architecture: plan_kernel(384, architecture),
    "combine_experts": lambda architecture: combine_kernel(5120, 6, architecture),
}
