"""Kernels of verification on Hopper: verdicts by equality, and the prefix of each sequence that verdicts leave.

A block takes a sequence: it finds the sequence's first row by summing the lengths before it.
"""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.sequence_rows import THREADS, sequence_macros

UNCHANGED, WITHOUT_BROKEN, FORCED = 0, 1, 2
"""How `prefix_kernel` changes verdicts: not at all; broken rows refuse their drafts; given ids replace tokens."""
NO_ROW = (1 << 63) - 1
"""Beyond the rows of every pool; a draft that was drawn from there is refused."""


@functools.cache
def matches_kernel(architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel: which rows judge which drafts, where those were drawn from, and verdicts by equality.

    num_slots: of the pool that drafts were drawn from, 0 = that is not wanted; has_flags: whether some of them may be
    certain. A draft that the pool has no row for gets the row NO_ROW.
    """
    T = tilelang().language
    n, t, num_flags = T.dynamic("N"), T.dynamic("T"), T.dynamic("num_flags")
    sum_before = sequence_macros().sum_before

    @T.prim_func
    def match_rows(
        drawn_ids: T.Tensor((t,), "int32"),
        token_ids: T.Tensor((t,), "int32"),
        query_lengths: T.Tensor((n,), "int32"),
        read_slots: T.Tensor((n,), "int32"),
        is_certain: T.Tensor((num_flags,), "uint8"),
        yielded: T.Tensor((t,), "int32"),
        is_accepted: T.Tensor((t,), "uint8"),
        accept_probs: T.Tensor((t,), "float32"),
        drawn_with: T.Tensor((t,), "float32"),
        draft_ids: T.Tensor((t,), "int32"),
        has_draft: T.Tensor((t,), "uint8"),
        draft_rows: T.Tensor((t,), "int64"),
        draft_length: T.int32,
        num_slots: T.int32,
        has_flags: T.bool,
    ) -> None:
        with T.Kernel(n, threads=THREADS) as sequence:
            first, length = T.alloc_var("int32"), T.alloc_var("int32")
            place, row, draft = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            judges, holds, slot = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            source = T.alloc_var("int64")
            first = sum_before(query_lengths, sequence)
            length = query_lengths[sequence]
            place = T.get_thread_binding()
            while place < length:
                row = first + place
                if row < t:
                    draft = token_ids[T.truncmod(row + 1, t)]
                    judges = T.if_then_else(place < length - 1, 1, 0)
                    holds = T.if_then_else(
                        judges == 0, 1, T.if_then_else(draft >= 0, T.if_then_else(drawn_ids[row] == draft, 1, 0), 0)
                    )
                    yielded[row] = drawn_ids[row]
                    is_accepted[row] = T.cast(holds, "uint8")
                    accept_probs[row] = T.cast(holds, "float32")
                    if judges == 1 and draft < 0:
                        drawn_with[row] = -T.infinity("float32")
                    else:
                        drawn_with[row] = T.float32(0)
                    draft_ids[row] = draft
                    has_draft[row] = T.cast(judges, "uint8")
                    if num_slots > 0:
                        source = T.int64(NO_ROW)
                        slot = read_slots[sequence]
                        if judges == 1 and slot >= 0 and slot < num_slots and place < draft_length:
                            source = T.cast(slot, "int64") * draft_length + place
                            if has_flags and is_certain[source] != T.cast(0, "uint8"):
                                source = T.int64(-1)
                        draft_rows[row] = source
                place = place + THREADS

    return compiled(match_rows, architecture)


@functools.cache
def prefix_kernel(kind: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that changes verdicts and finds the prefix of each sequence; kind: as above.

    given: of WITHOUT_BROKEN the ids that broken rows yield, of FORCED the forced ids. Verdicts are read from old_...
    and written to new_...; those of UNCHANGED are not written.
    """
    T = tilelang().language
    n, t, num_rows, num_flags = T.dynamic("N"), T.dynamic("T"), T.dynamic("num_rows"), T.dynamic("num_flags")
    num_accepted_ids = T.dynamic("num_accepted_ids")
    sum_before = sequence_macros().sum_before

    @T.prim_func
    def find_prefix(
        given: T.Tensor((num_rows,), "int32"),
        is_broken: T.Tensor((num_flags,), "uint8"),
        token_ids: T.Tensor((t,), "int32"),
        query_lengths: T.Tensor((n,), "int32"),
        old_tokens: T.Tensor((num_rows,), "int32"),
        old_accepted: T.Tensor((t,), "uint8"),
        new_tokens: T.Tensor((num_rows,), "int32"),
        new_accepted: T.Tensor((num_flags,), "uint8"),
        accept_probs: T.Tensor((num_rows,), "float32"),
        num_accepted: T.Tensor((n,), "int32"),
        last_rows: T.Tensor((n,), "int64"),
        accepted_ids: T.Tensor((num_accepted_ids,), "int32"),
        draft_length: T.int32,
    ) -> None:
        with T.Kernel(n, threads=THREADS) as sequence:
            refused = T.alloc_shared((1,), "int32")
            first, length, place = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            row, token, accepts = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            first = sum_before(query_lengths, sequence)
            length = query_lengths[sequence]
            if T.get_thread_binding() == 0:
                refused[0] = T.min(length - 1, draft_length)
            T.sync_threads()
            place = T.get_thread_binding()
            while place < length:
                row = first + place
                if row < t:
                    accepts = T.cast(old_accepted[row], "int32")
                    if kind == WITHOUT_BROKEN:
                        token = old_tokens[row]
                        if is_broken[row] != T.cast(0, "uint8"):
                            token = given[row]
                            if place < length - 1:
                                accepts = 0
                                accept_probs[row] = T.float32(0)
                        new_tokens[row] = T.max(token, 0)
                        new_accepted[row] = T.cast(accepts, "uint8")
                    if kind == FORCED:
                        token = old_tokens[row]
                        if given[row] >= 0:
                            token = given[row]
                            if place < length - 1:
                                accepts = T.if_then_else(token == token_ids[T.truncmod(row + 1, t)], 1, 0)
                        new_tokens[row] = token
                        new_accepted[row] = T.cast(accepts, "uint8")
                    if accepts == 0 and place < length - 1:
                        T.atomic_min(refused[0], place)
                place = place + THREADS
            T.sync_threads()
            if T.get_thread_binding() == 0:
                num_accepted[sequence] = T.max(refused[0], 0)
                last_rows[sequence] = T.cast(first + T.max(refused[0], 0), "int64")
            place = T.get_thread_binding()
            while place < draft_length:
                if place < refused[0]:
                    accepted_ids[sequence * draft_length + place] = token_ids[T.truncmod(first + place + 1, t)]
                else:
                    accepted_ids[sequence * draft_length + place] = -1
                place = place + THREADS

    return compiled(find_prefix, architecture)
