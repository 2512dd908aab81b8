"""Pooling of the compressor on Hopper: a thread owns four channels of a row, in the batch and in the ring alike.

So nobody but the thread itself reads what it writes into the ring, and a row needs no barrier.
"""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.compressor import LATENT, SCORE, check_pool_rows
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import aligned_rows, check_device, check_integers, name_of, span

THREADS = 128
QUAD = 4
"""Channels of a thread."""


@functools.cache
def _macros() -> SimpleNamespace:
    """The macros. group: float32 [2, ratio, 4], scores and latents of four channels."""
    T: Any = tilelang().language

    @T.macro
    def pool_group(group: Any, ratio: int, pooled: Any) -> None:
        """Softmax of the scores and weighted sum of the latents, in token order, for each channel."""
        for i in T.unroll(QUAD):
            largest, total, weight = T.alloc_var("float32"), T.alloc_var("float32"), T.alloc_var("float32")
            largest = group[SCORE, 0, i]
            for token in T.unroll(1, ratio):
                largest = T.max(largest, group[SCORE, token, i])
            for token in T.unroll(ratio):
                group[SCORE, token, i] = T.exp(group[SCORE, token, i] - largest)
            total = group[SCORE, 0, i]
            for token in T.unroll(1, ratio):
                total = T.ieee_add(total, group[SCORE, token, i])
            pooled[i] = T.ieee_mul(group[SCORE, 0, i] / total, group[LATENT, 0, i])
            for token in T.unroll(1, ratio):
                weight = T.ieee_mul(group[SCORE, token, i] / total, group[LATENT, token, i])
                pooled[i] = T.ieee_add(pooled[i], weight)

    @T.macro
    def copy_quad(target: Any, target_quad: Any, source: Any, source_quad: Any) -> None:
        for i in T.vectorized(QUAD):
            target[target_quad * QUAD + i] = source[source_quad * QUAD + i]

    @T.macro
    def load_quad(group: Any, part: int, token: Any, source: Any, quad: Any) -> None:
        for i in T.vectorized(QUAD):
            group[part, token, i] = source[quad * QUAD + i]

    return SimpleNamespace(pool_group=pool_group, copy_quad=copy_quad, load_quad=load_quad)


@functools.cache
def pool_decode_kernel(
    width: int, ratio: int, ring_length: int, dtypes: tuple[torch.dtype, torch.dtype], architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel of `pool_decode`; dtypes: of state slots and context lengths."""
    T, macro = tilelang().language, _macros()
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


@functools.cache
def pool_prefill_kernel(
    width: int, ratio: int, ring_length: int, dtypes: tuple[torch.dtype, ...], architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel of `pool_prefill`; dtypes: of its integer tensors in order, row_order last."""
    T, macro = tilelang().language, _macros()
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


def pool_decode(
    score: Tensor, latent: Tensor, ring: Tensor, state_slots: Tensor, context_lengths: Tensor, ratio: int
) -> Tensor:
    """As the reference, in float32, where rows of one sequence lie one after the other in order of position."""
    given = {"state_slots": state_slots, "context_lengths": context_lengths}
    score, latent = _checked(score, latent, ring, ratio, given)
    if state_slots.numel() != score.shape[0] or context_lengths.numel() != score.shape[0]:
        raise ConfigError(
            f"state_slots has {state_slots.numel()} entries and context_lengths {context_lengths.numel()}; "
            f"both need one per row, {score.shape[0]}"
        )
    pooled = torch.empty(score.shape, dtype=torch.float32, device=score.device)
    if pooled.numel():
        kernel = pool_decode_kernel(score.shape[1], ratio, ring.shape[1], (state_slots.dtype, context_lengths.dtype))
        with torch.cuda.device(score.device):
            flat = (span(score), span(latent), span(ring), state_slots.contiguous(), context_lengths.contiguous())
            kernel(*flat, pooled.view(-1), score.stride(0) // QUAD, *_ring_quads(ring))
    return pooled


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
    given = {
        "state_slots": state_slots,
        "query_offsets": query_offsets,
        "first_positions": first_positions,
        "compressed_offsets": compressed_offsets,
        "row_order": state_slots if row_order is None else row_order,
    }
    score, latent = _checked(score, latent, ring, ratio, given)
    if num_entries is None:
        raise ConfigError("num_entries is None; kernels of sm90 do not read it back and need it")
    count = state_slots.numel()
    if (
        query_offsets.numel() != count + 1
        or first_positions.numel() != count
        or compressed_offsets.numel() != count + 1
    ):
        raise ConfigError(
            f"query_offsets has {query_offsets.numel()} entries, first_positions {first_positions.numel()} and "
            f"compressed_offsets {compressed_offsets.numel()}; {count} state slots need {count + 1}, {count} and "
            f"{count + 1}"
        )
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
                *_ring_quads(ring),
            )
    return pooled


def _checked(
    score: Tensor, latent: Tensor, ring: Tensor, ratio: int, integers: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """score and latent with rows equally far apart."""
    check_pool_rows(score, latent, ring, ratio)
    for name, tensor in (("score", score), ("latent", latent), ("ring", ring)):
        if tensor.dtype != torch.float32:
            raise ConfigError(f"{name} has dtype {tensor.dtype}; float32 is required")
    for name, tensor in integers.items():
        check_integers(name, tensor)
    check_device(score=score, latent=latent, ring=ring, **integers)
    if score.shape[1] % QUAD or ring.stride(3) != 1 or any(stride % QUAD for stride in ring.stride()[:3]):
        raise ConfigError(
            f"ring is {tuple(ring.shape)} with strides {ring.stride()}; kernels of sm90 need a last stride of 1 and "
            f"multiples of {QUAD} before it"
        )
    if ring.data_ptr() % 16:
        raise ConfigError(f"ring begins at address {ring.data_ptr():#x}; a multiple of 16 is needed")
    score, latent = aligned_rows(score, QUAD), aligned_rows(latent, QUAD)
    if score.stride(0) != latent.stride(0):
        score, latent = score.contiguous(), latent.contiguous()
    return score, latent


def _ring_quads(ring: Tensor) -> tuple[int, int, int]:
    slot, line, part = (stride // QUAD for stride in ring.stride()[:3])
    return slot, line, part


IMPLEMENTATIONS = tuple(
    Implementation(
        op=function.__name__,
        backend="sm90",
        provider="tilelang",
        function=function,
        deterministic=True,
        batch_invariant=True,
        graph_safe=True,
    )
    for function in (pool_decode, pool_prefill)
)

COMPILE_EXAMPLES = {
    "pool_decode": functools.partial(pool_decode_kernel, 512, 2, 7, (torch.int32, torch.int32)),
    "pool_prefill": functools.partial(pool_prefill_kernel, 512, 2, 7, (torch.int32,) * 5),
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
