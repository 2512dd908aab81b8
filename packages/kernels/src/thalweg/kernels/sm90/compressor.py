"""The compressor in a decode step, on Hopper: rows into their rings, and an entry where a row completes a group."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.reference.compressor import LATENT, SCORE, check_pool_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.pooling import QUAD, THREADS, checked_rows, pool_macros, ring_quads
from thalweg.kernels.sm90.tensors import check_integers, name_of, span


@functools.cache
def pool_decode_kernel(
    width: int, ratio: int, ring_length: int, dtypes: tuple[torch.dtype, torch.dtype], architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel of `pool_decode`; dtypes: of state slots and context lengths."""
    T, macro = tilelang().language, pool_macros()
    num_rows, num_elements = T.dynamic("T"), T.dynamic("num_elements", "int64")
    num_pooled, num_ring = T.dynamic("num_pooled", "int64"), T.dynamic("num_ring", "int64")
    states, contexts = map(name_of, dtypes)
    quads = width // QUAD

    @T.prim_func
    def pool_decode(
        score: T.Tensor((num_elements,), "float32"),
        latent: T.Tensor((num_elements,), "float32"),
        ring: T.Tensor((num_ring,), "float32"),
        state_slots: T.Tensor((num_rows,), states),
        context_lengths: T.Tensor((num_rows,), contexts),
        pooled: T.Tensor((num_pooled,), "float32"),
        row_quads: T.int64,
        slot_quads: T.int64,
        line_quads: T.int64,
        part_quads: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows * quads, THREADS), threads=THREADS) as block:
            place, row, quad = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            place = block * THREADS + T.get_thread_binding()
            row = T.truncdiv(place, quads)
            quad = place - row * quads
            if row < num_rows:
                slot, position, own, line = (
                    T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int64"), T.alloc_var("int64")
                )  # fmt: skip
                slot = T.cast(state_slots[row], "int32")
                position = T.cast(context_lengths[row], "int32") - 1
                group, result = T.alloc_local((2, ratio, QUAD), "float32"), T.alloc_local((QUAD,), "float32")
                own = T.cast(row, "int64") * row_quads + quad
                line = T.cast(slot, "int64") * slot_quads + T.truncmod(position, ring_length) * line_quads + quad
                macro.load_quad(group, SCORE, ratio - 1, score, own)
                macro.load_quad(group, LATENT, ratio - 1, latent, own)
                for i in T.vectorized(QUAD):
                    ring[(line + SCORE * part_quads) * QUAD + i] = group[SCORE, ratio - 1, i]
                for i in T.vectorized(QUAD):
                    ring[(line + LATENT * part_quads) * QUAD + i] = group[LATENT, ratio - 1, i]
                for i in T.unroll(QUAD):
                    result[i] = 0.0
                if T.truncmod(position + 1, ratio) == 0:
                    for token in T.unroll(ratio - 1):
                        # The token's own row, if this call has it: the ring may not hold it yet.
                        other, age = T.alloc_var("int32"), T.alloc_var("int32")
                        age = ratio - 1 - token
                        other = row - age
                        is_here = T.alloc_var("bool")
                        is_here = False
                        if other >= 0:
                            is_here = state_slots[other] == slot and context_lengths[other] == position + 1 - age
                        if is_here:
                            macro.load_quad(group, SCORE, token, score, T.cast(other, "int64") * row_quads + quad)
                            macro.load_quad(group, LATENT, token, latent, T.cast(other, "int64") * row_quads + quad)
                        else:
                            line = T.cast(slot, "int64") * slot_quads + quad
                            line = line + T.truncmod(position - age, ring_length) * line_quads
                            macro.load_quad(group, SCORE, token, ring, line + SCORE * part_quads)
                            macro.load_quad(group, LATENT, token, ring, line + LATENT * part_quads)
                    macro.pool_group(group, ratio, result)
                for i in T.vectorized(QUAD):
                    pooled[(T.cast(row, "int64") * quads + quad) * QUAD + i] = result[i]

    return compiled(pool_decode, architecture)


def pool_decode(
    score: Tensor, latent: Tensor, ring: Tensor, state_slots: Tensor, context_lengths: Tensor, ratio: int
) -> Tensor:
    """As the reference, in float32, where rows of one sequence lie one after the other in order of position."""
    check_pool_rows(score, latent, ring, ratio)
    check_integers("state_slots", state_slots, (score.shape[0],))
    check_integers("context_lengths", context_lengths, (score.shape[0],))
    given = {"state_slots": state_slots, "context_lengths": context_lengths}
    score, latent = checked_rows(score, latent, ring, given)
    pooled = torch.empty(score.shape, dtype=torch.float32, device=score.device)
    if pooled.numel():
        kernel = pool_decode_kernel(score.shape[1], ratio, ring.shape[1], (state_slots.dtype, context_lengths.dtype))
        with torch.cuda.device(score.device):
            flat = (span(score), span(latent), span(ring), state_slots.contiguous(), context_lengths.contiguous())
            kernel(*flat, pooled.view(-1), score.stride(0) // QUAD, *ring_quads(ring))
    return pooled


IMPLEMENTATIONS = (implementation(pool_decode),)

COMPILE_EXAMPLES = {"pool_decode": functools.partial(pool_decode_kernel, 512, 2, 7, (torch.int32, torch.int32))}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
