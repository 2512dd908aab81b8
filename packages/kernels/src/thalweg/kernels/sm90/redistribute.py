"""Sharing out query tokens by the survival of drafts, on Hopper: one block finds the last survival that is served.

The survivals become integers of the same order, and the block settles the bits of the largest integer that at least as
many drafts reach as there are tokens for, two bits at a time, by counting. Drafts above it are served, and of those
that equal it the first ones.
"""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.async_inputs import check_total
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, name_of

WARP = 32
FEWEST_THREADS, MOST_THREADS = 128, 1024
MOST_DRAFTS = 63
"""Survivals of one thread: it keeps them in registers, and the counts of a block fit 16 bits."""


@functools.cache
def redistribute_kernel(
    draft_length: int, rows_per_thread: int, threads: int, dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel for previous_rows of a dtype; `rows_per_thread` neighbouring sequences are one thread's."""
    T = tilelang().language
    num_sequences, num_confidences = T.dynamic("N"), T.dynamic("num_confidences")
    own = draft_length * rows_per_thread

    def warp_sum(value: Any) -> Any:
        # One instruction; TileLang's own sum is five exchanges.
        return T.call_extern("uint32", "__reduce_add_sync", T.uint32(0xFFFFFFFF), value)

    @T.macro
    def block_sum(value: Any, sums: Any, turn: Any) -> Any:
        """Over all threads; sums: [turns, WARP] of which the next call must not take the same one."""
        warp = warp_sum(value)
        if T.get_thread_binding() % WARP == 0:
            sums[turn, T.get_thread_binding() // WARP] = warp
        T.sync_threads()
        return warp_sum(sums[turn, T.get_thread_binding() % WARP])

    @T.prim_func
    def redistribute(
        previous_rows: T.Tensor((num_sequences,), name_of(dtype)),
        confidences: T.Tensor((num_confidences,), "float32"),
        lengths: T.Tensor((num_sequences,), "int32"),
        num_previous: T.int32,
        num_served: T.uint32,
    ) -> None:
        with T.Kernel(1, threads=threads) as _:
            thread = T.get_thread_binding()
            keys = T.alloc_local((own,), "uint32")
            # Of warps that the block does not have, the sums stay zero.
            sums = T.alloc_shared((6, WARP), "uint32")
            for turn in T.unroll(-(-6 * WARP // threads)):
                if turn * threads + thread < 6 * WARP:
                    sums[(turn * threads + thread) // WARP, thread % WARP] = T.uint32(0)
            T.sync_threads()
            sequence, row, survival = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("float32")
            bits = T.alloc_var("uint32")
            for turn in T.unroll(rows_per_thread):
                sequence = thread * rows_per_thread + turn
                row = -1
                if sequence < num_sequences:
                    row = T.cast(previous_rows[sequence], "int32")
                survival = 1.0
                for place in T.unroll(draft_length):
                    if row >= 0 and row < num_previous:
                        survival = T.ieee_mul(survival, confidences[row * draft_length + place])
                    else:
                        survival = 0.0
                    # Zeros of both signs are equal, and what is not a number comes as -1.
                    bits = T.reinterpret(T.ieee_add(survival, 0.0), "uint32")
                    if T.bitwise_and(bits, T.uint32(0x7FFFFFFF)) > T.uint32(0x7F800000):
                        bits = T.uint32(0xBF800000)
                    if bits >= T.uint32(0x80000000):
                        bits = T.bitwise_not(bits)
                    else:
                        bits = T.bitwise_or(bits, T.uint32(0x80000000))
                    if sequence >= num_sequences:
                        bits = T.uint32(0)
                    keys[turn * draft_length + place] = bits
            last, unit = T.alloc_var("uint32"), T.alloc_var("uint32")
            few, many = T.alloc_var("uint32"), T.alloc_var("uint32")
            last = T.uint32(0)
            for step in T.unroll(16):
                unit = T.shift_left(T.uint32(1), T.uint32(30 - 2 * step))
                few = T.uint32(0)
                many = T.uint32(0)
                for i in T.unroll(own):
                    if keys[i] >= last + unit:
                        many = many + T.uint32(1)
                    if keys[i] >= last + unit * T.uint32(2):
                        many = many + T.uint32(1 << 16)
                    if keys[i] >= last + unit * T.uint32(3):
                        few = few + T.uint32(1)
                many_warp, few_warp = warp_sum(many), warp_sum(few)
                if thread % WARP == 0:
                    sums[step % 2, thread // WARP] = many_warp
                    sums[2 + step % 2, thread // WARP] = few_warp
                T.sync_threads()
                many = warp_sum(sums[step % 2, thread % WARP])
                few = warp_sum(sums[2 + step % 2, thread % WARP])
                if few >= num_served:
                    last = last + unit * T.uint32(3)
                elif T.shift_right(many, T.uint32(16)) >= num_served:
                    last = last + unit * T.uint32(2)
                elif T.bitwise_and(many, T.uint32(0xFFFF)) >= num_served:
                    last = last + unit
            count, above = T.alloc_var("uint32"), T.alloc_var("uint32")
            above = T.uint32(0)
            count = T.uint32(0)
            for i in T.unroll(own):
                if keys[i] > last:
                    above = above + T.uint32(1)
                if keys[i] == last:
                    count = count + T.uint32(1)
            # The equal ones that earlier threads have, of which the first are served.
            total_above, before, earlier = T.alloc_var("uint32"), T.alloc_var("uint32"), T.alloc_var("uint32")
            total_above = block_sum(above, sums, 4)
            before = count
            for step in T.unroll(5):
                earlier = T.shfl_up(before, T.shift_left(1, step))
                if thread % WARP >= T.shift_left(1, step):
                    before = before + earlier
            if thread % WARP == WARP - 1:
                sums[5, thread // WARP] = before
            T.sync_threads()
            earlier = T.uint32(0)
            if thread % WARP < thread // WARP:
                earlier = sums[5, thread % WARP]
            earlier = warp_sum(earlier)
            left = T.alloc_var("int32")
            left = T.cast(num_served - total_above - (before - count) - earlier, "int32")
            length = T.alloc_var("int32")
            for turn in T.unroll(rows_per_thread):
                sequence = thread * rows_per_thread + turn
                length = 1
                for place in T.unroll(draft_length):
                    if keys[turn * draft_length + place] > last:
                        length = length + 1
                    if keys[turn * draft_length + place] == last:
                        if left > 0:
                            length = length + 1
                        left = left - 1
                if sequence < num_sequences:
                    lengths[sequence] = length

    return compiled(redistribute, architecture)


def redistribute(total: int, previous_rows: Tensor, confidences: Tensor) -> Tensor:
    """As the reference, of so many sequences that a thread has at most MOST_DRAFTS drafts."""
    check_total(total, previous_rows, confidences)
    check_device(previous_rows=previous_rows, confidences=confidences)
    count, draft_length = previous_rows.shape[0], confidences.shape[1]
    lengths = torch.ones(count, dtype=torch.int32, device=previous_rows.device)
    if count == 0 or draft_length == 0:
        return lengths
    threads = max(FEWEST_THREADS, min(1 << (count - 1).bit_length(), MOST_THREADS))
    rows_per_thread = 1 << (-(-count // threads) - 1).bit_length()
    if rows_per_thread * draft_length > MOST_DRAFTS:
        raise ConfigError(
            f"{count} sequences with {draft_length} drafts would give a thread {rows_per_thread * draft_length}; "
            f"kernels of sm90 take up to {MOST_DRAFTS} in each of {MOST_THREADS}"
        )
    kernel = redistribute_kernel(draft_length, rows_per_thread, threads, previous_rows.dtype)
    given = confidences.contiguous() if confidences.numel() else confidences.new_zeros(1, draft_length)
    with torch.cuda.device(lengths.device):
        kernel(previous_rows.contiguous(), given.view(-1), lengths, confidences.shape[0], total - count)
    return lengths


IMPLEMENTATIONS = (implementation(redistribute),)

COMPILE_EXAMPLES = {"redistribute": functools.partial(redistribute_kernel, 5, 1, 1024, torch.int32)}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
