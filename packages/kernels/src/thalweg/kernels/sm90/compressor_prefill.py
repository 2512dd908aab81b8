"""The compressor on chunks of prompts, on Hopper: entries from chunk and ring, then the last rows into the ring."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.compressor import LATENT, SCORE, check_chunks, check_pool_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.pooling import QUAD, THREADS, checked_rows, pool_macros, ring_quads
from thalweg.kernels.sm90.tensors import name_of, span


@functools.cache
def pool_prefill_kernel(
    width: int, ratio: int, ring_length: int, dtypes: tuple[torch.dtype, ...], architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel of `pool_prefill`; dtypes: of its integer tensors in order, row_order last."""
    T, macro = tilelang().language, pool_macros()
    num_sequences, num_offsets = T.dynamic("N"), T.dynamic("num_offsets")
    num_rows, num_elements = T.dynamic("T"), T.dynamic("num_elements", "int64")
    num_pooled, num_ring = T.dynamic("num_pooled", "int64"), T.dynamic("num_ring", "int64")
    states, queries, firsts, compressed, orders = map(name_of, dtypes)
    quads = width // QUAD

    @T.prim_func
    def pool_prefill(
        score: T.Tensor((num_elements,), "float32"),
        latent: T.Tensor((num_elements,), "float32"),
        ring: T.Tensor((num_ring,), "float32"),
        state_slots: T.Tensor((num_sequences,), states),
        query_offsets: T.Tensor((num_offsets,), queries),
        first_positions: T.Tensor((num_sequences,), firsts),
        compressed_offsets: T.Tensor((num_offsets,), compressed),
        row_order: T.Tensor((num_rows,), orders),
        pooled: T.Tensor((num_pooled,), "float32"),
        num_entries: T.int32,
        has_order: T.int32,
        row_quads: T.int64,
        slot_quads: T.int64,
        line_quads: T.int64,
        part_quads: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(T.cast(num_entries, "int64") * quads, THREADS), threads=THREADS) as block:
            place, entry_row, quad = T.alloc_var("int64"), T.alloc_var("int32"), T.alloc_var("int32")
            place = T.cast(block, "int64") * THREADS + T.get_thread_binding()
            entry_row = T.cast(T.truncdiv(place, quads), "int32")
            quad = T.cast(place - T.cast(entry_row, "int64") * quads, "int32")
            if entry_row < num_entries:
                low, high, middle = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
                low = 0
                high = num_sequences
                while low + 1 < high:
                    middle = T.shift_right(low + high, 1)
                    if compressed_offsets[middle] <= entry_row:
                        low = middle
                    else:
                        high = middle
                first, length, start, rank = (
                    T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
                )  # fmt: skip
                first = T.cast(first_positions[low], "int32")
                start = T.cast(query_offsets[low], "int32")
                length = T.cast(query_offsets[low + 1], "int32") - start
                rank = entry_row - T.cast(compressed_offsets[low], "int32")
                base = T.alloc_var("int64")
                base = T.cast(state_slots[low], "int64") * slot_quads + quad
                entry, row, line = T.alloc_var("int32"), T.alloc_var("int64"), T.alloc_var("int64")
                entry = T.truncdiv(first, ratio) + rank
                group, result = T.alloc_local((2, ratio, QUAD), "float32"), T.alloc_local((QUAD,), "float32")
                for i in T.unroll(QUAD):
                    result[i] = 0.0
                if (entry + 1) * ratio <= first + length:
                    for token in T.unroll(ratio):
                        if entry * ratio + token >= first:
                            row = start + entry * ratio + token - first
                            if has_order != 0:
                                row = T.cast(row_order[row], "int64")
                            row = row * row_quads + quad
                            macro.load_quad(group, SCORE, token, score, row)
                            macro.load_quad(group, LATENT, token, latent, row)
                        else:
                            line = base + T.truncmod(entry * ratio + token, ring_length) * line_quads
                            macro.load_quad(group, SCORE, token, ring, line + SCORE * part_quads)
                            macro.load_quad(group, LATENT, token, ring, line + LATENT * part_quads)
                    macro.pool_group(group, ratio, result)
                for i in T.vectorized(QUAD):
                    pooled[(T.cast(entry_row, "int64") * quads + quad) * QUAD + i] = result[i]
                if rank == 0:
                    # The only entry that read the ring: now its sequence may write there.
                    kept = T.alloc_var("int32")
                    kept = T.max(length - ring_length, 0)
                    while kept < length:
                        row = start + kept
                        if has_order != 0:
                            row = T.cast(row_order[row], "int64")
                        row = row * row_quads + quad
                        line = base + T.truncmod(first + kept, ring_length) * line_quads
                        macro.copy_quad(ring, line + SCORE * part_quads, score, row)
                        macro.copy_quad(ring, line + LATENT * part_quads, latent, row)
                        kept = kept + 1

    return compiled(pool_prefill, architecture)


def pool_prefill(
    score: Tensor,
    latent: Tensor,
    ring: Tensor,
    state_slots: Tensor,
    query_offsets: Tensor,
    first_positions: Tensor,
    compressed_offsets: Tensor,
    ratio: int,
    row_order: Tensor | None = None,
    *,
    num_entries: int | None = None,
) -> Tensor:
    """As the reference, in float32; num_entries is required, for nothing is read back."""
    check_pool_rows(score, latent, ring, ratio)
    check_chunks(score, state_slots, query_offsets, first_positions, compressed_offsets, row_order, num_entries)
    given = {
        "state_slots": state_slots,
        "query_offsets": query_offsets,
        "first_positions": first_positions,
        "compressed_offsets": compressed_offsets,
        "row_order": state_slots if row_order is None else row_order,
    }
    score, latent = checked_rows(score, latent, ring, given)
    if num_entries is None:
        raise ConfigError("num_entries is None; kernels of sm90 do not read it back and need it")
    pooled = torch.empty((num_entries, score.shape[1]), dtype=torch.float32, device=score.device)
    if pooled.numel():
        integers = [tensor.contiguous() for tensor in given.values()]
        kernel = pool_prefill_kernel(score.shape[1], ratio, ring.shape[1], tuple(tensor.dtype for tensor in integers))
        with torch.cuda.device(score.device):
            kernel(
                *(span(tensor) for tensor in (score, latent, ring)),
                *integers,
                pooled.view(-1),
                num_entries,
                int(row_order is not None),
                score.stride(0) // QUAD,
                *ring_quads(ring),
            )
    return pooled


IMPLEMENTATIONS = (implementation(pool_prefill),)

COMPILE_EXAMPLES = {"pool_prefill": functools.partial(pool_prefill_kernel, 512, 2, 7, (torch.int32,) * 5)}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
