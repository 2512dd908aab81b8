"""Inputs of a step whose predecessor the host has not seen, on Hopper: a block per sequence, a thread per id.

A row of the previous step that does not exist counts as none, and numbers of accepted drafts and token ids are kept in
their range: nothing is read back to refuse them.
"""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.reference.async_inputs import check_ids, check_ngrams, check_rows, check_tokens
from thalweg.kernels.reference.numerics import check_count
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.sequence_rows import THREADS, sequence_macros
from thalweg.kernels.sm90.tensors import check_device, name_of


@functools.cache
def context_lengths_kernel(dtypes: tuple[torch.dtype, ...], architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `correct_context_lengths`; dtypes: of its tensors in order."""
    T = tilelang().language
    num_sequences, num_previous = T.dynamic("N"), T.dynamic("P")
    base, query, previous, accepted = map(name_of, dtypes)

    @T.prim_func
    def correct_context_lengths(
        base_lengths: T.Tensor((num_sequences,), base),
        query_lengths: T.Tensor((num_sequences,), query),
        previous_rows: T.Tensor((num_sequences,), previous),
        num_accepted: T.Tensor((num_previous,), accepted),
        lengths: T.Tensor((num_sequences,), "int32"),
        draft_length: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_sequences, THREADS), threads=THREADS) as block:
            sequence = T.alloc_var("int32")
            sequence = block * THREADS + T.get_thread_binding()
            if sequence < num_sequences:
                row, rejected = T.alloc_var("int32"), T.alloc_var("int32")
                row = T.cast(previous_rows[sequence], "int32")
                rejected = 0
                if row >= 0 and row < num_previous:
                    rejected = draft_length - T.cast(num_accepted[row], "int32")
                lengths[sequence] = (
                    T.cast(base_lengths[sequence], "int32") + T.cast(query_lengths[sequence], "int32") - rejected
                )

    return compiled(correct_context_lengths, architecture)


@functools.cache
def token_ids_kernel(dtypes: tuple[torch.dtype, ...], architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `gather_token_ids`; dtypes: of its tensors in order."""
    T, macro = tilelang().language, sequence_macros()
    num_sequences, num_previous, width = T.dynamic("N"), T.dynamic("P"), T.dynamic("width")
    num_drafts, num_queries = T.dynamic("num_drafts"), T.dynamic("T")
    query, previous, own, left, drafts = map(name_of, dtypes)

    @T.prim_func
    def gather_token_ids(
        query_lengths: T.Tensor((num_sequences,), query),
        previous_rows: T.Tensor((num_sequences,), previous),
        token_ids: T.Tensor((num_sequences, width), own),
        previous_token_ids: T.Tensor((num_previous,), left),
        previous_draft_ids: T.Tensor((num_drafts,), drafts),
        ids: T.Tensor((num_queries,), own),
        known: T.int32,
    ) -> None:
        with T.Kernel(num_sequences, threads=THREADS) as sequence:
            before = T.alloc_var("int32")
            before = macro.sum_before(query_lengths, sequence)
            place, row, length = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            row = T.cast(previous_rows[sequence], "int32")
            length = T.min(T.min(T.cast(query_lengths[sequence], "int32"), width), num_queries - before)
            place = T.get_thread_binding()
            while place < length:
                if row < 0 or row >= known:
                    ids[before + place] = token_ids[sequence, place]
                elif place == 0:
                    ids[before] = T.cast(previous_token_ids[row], own)
                else:
                    ids[before + place] = T.cast(previous_draft_ids[row * (width - 1) + place - 1], own)
                place = place + THREADS

    return compiled(gather_token_ids, architecture)


@functools.cache
def ngram_ids_kernel(look_back: int, dtypes: tuple[torch.dtype, ...], architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `gather_ngram_ids`; dtypes: of its tensors in order."""
    T, macro = tilelang().language, sequence_macros()
    num_sequences, num_previous, width = T.dynamic("N"), T.dynamic("P"), T.dynamic("width")
    num_drafts, num_ids, num_compressed = T.dynamic("num_drafts"), T.dynamic("num_ids"), T.dynamic("V")
    window_width = T.dynamic("window_width")
    query, previous, own, history, left, drafts, accepted, table = map(name_of, dtypes)
    columns = look_back + 1

    @T.prim_func
    def gather_ngram_ids(
        query_lengths: T.Tensor((num_sequences,), query),
        previous_rows: T.Tensor((num_sequences,), previous),
        ngram_ids: T.Tensor((num_sequences, width), own),
        windows: T.Tensor((num_sequences, window_width), history),
        previous_token_ids: T.Tensor((num_previous,), left),
        previous_draft_ids: T.Tensor((num_drafts,), drafts),
        num_accepted: T.Tensor((num_previous,), accepted),
        compressed: T.Tensor((num_compressed,), table),
        ids: T.Tensor((num_ids,), own),
        known: T.int32,
        num_queries: T.int32,
        pad_id: T.int64,
    ) -> None:
        with T.Kernel(num_sequences, threads=THREADS) as sequence:
            before = T.alloc_var("int32")
            before = macro.sum_before(query_lengths, sequence)
            place, row, length, first = (
                T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            )  # fmt: skip
            row = T.cast(previous_rows[sequence], "int32")
            length = T.min(T.min(T.cast(query_lengths[sequence], "int32"), width), num_queries - before)
            first = 0
            if row < 0 or row >= known:
                row = -1
            else:
                first = T.max(T.min(T.cast(num_accepted[row], "int32"), width - 1), 0)
            place = T.get_thread_binding()
            while place < length:
                is_cut, at, token = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
                value = T.alloc_var("int64")
                is_cut = 0
                for age in T.unroll(columns):
                    at = place - age
                    if at < 0:
                        value = T.cast(windows[sequence, first + look_back + at], "int64")
                    elif row < 0:
                        value = T.cast(ngram_ids[sequence, at], "int64")
                    else:
                        if at == 0:
                            token = T.cast(previous_token_ids[row], "int32")
                        else:
                            token = T.cast(previous_draft_ids[row * (width - 1) + at - 1], "int32")
                        value = T.cast(compressed[T.max(T.min(token, num_compressed - 1), 0)], "int64")
                    if value < 0:
                        is_cut = 1
                    if is_cut == 1:
                        value = pad_id
                    ids[(before + place) * columns + age] = T.cast(value, own)
                place = place + THREADS

    return compiled(gather_ngram_ids, architecture)


def correct_context_lengths(
    base_lengths: Tensor, query_lengths: Tensor, previous_rows: Tensor, num_accepted: Tensor, draft_length: int
) -> Tensor:
    """As the reference."""
    check_rows(previous_rows, base_lengths=base_lengths, query_lengths=query_lengths)
    check_ids("num_accepted", num_accepted, "P")
    check_count("draft_length", draft_length)
    given = {
        "base_lengths": base_lengths,
        "query_lengths": query_lengths,
        "previous_rows": previous_rows,
        "num_accepted": num_accepted,
    }
    lengths = torch.empty(previous_rows.shape, dtype=torch.int32, device=previous_rows.device)
    if _on_device(given, lengths):
        kernel = context_lengths_kernel(_dtypes(given))
        with torch.cuda.device(lengths.device):
            kernel(*(_filled(tensor) for tensor in given.values()), lengths, draft_length)
    return lengths


def gather_token_ids(
    query_lengths: Tensor,
    previous_rows: Tensor,
    token_ids: Tensor,
    previous_token_ids: Tensor,
    previous_draft_ids: Tensor,
    num_queries: int,
) -> Tensor:
    """As the reference."""
    check_tokens(query_lengths, previous_rows, token_ids, previous_token_ids, previous_draft_ids, num_queries)
    given = {
        "query_lengths": query_lengths,
        "previous_rows": previous_rows,
        "token_ids": token_ids,
        "previous_token_ids": previous_token_ids,
        "previous_draft_ids": previous_draft_ids,
    }
    ids = token_ids.new_empty(num_queries)
    if _on_device(given, ids) and previous_rows.shape[0]:
        kernel = token_ids_kernel(_dtypes(given))
        with torch.cuda.device(ids.device):
            flat = (_filled(previous_token_ids), _filled(previous_draft_ids).view(-1))
            kernel(
                query_lengths.contiguous(), previous_rows.contiguous(), token_ids.contiguous(), *flat, ids,
                previous_token_ids.shape[0],
            )  # fmt: skip
    return ids


def gather_ngram_ids(
    query_lengths: Tensor,
    previous_rows: Tensor,
    ngram_ids: Tensor,
    windows: Tensor,
    previous_token_ids: Tensor,
    previous_draft_ids: Tensor,
    num_accepted: Tensor,
    compressed: Tensor,
    pad_id: int,
    num_queries: int,
) -> Tensor:
    """As the reference."""
    given = {
        "query_lengths": query_lengths,
        "previous_rows": previous_rows,
        "ngram_ids": ngram_ids,
        "windows": windows,
        "previous_token_ids": previous_token_ids,
        "previous_draft_ids": previous_draft_ids,
        "num_accepted": num_accepted,
        "compressed": compressed,
    }
    look_back = check_ngrams(**given, pad_id=pad_id, num_queries=num_queries)
    ids = ngram_ids.new_empty((num_queries, look_back + 1))
    if _on_device(given, ids) and previous_rows.shape[0]:
        kernel = ngram_ids_kernel(look_back, _dtypes(given))
        with torch.cuda.device(ids.device):
            kernel(
                *(_filled(given[name]) for name in ("query_lengths", "previous_rows", "ngram_ids", "windows")),
                _filled(previous_token_ids),
                _filled(previous_draft_ids).view(-1),
                *(_filled(given[name]) for name in ("num_accepted", "compressed")),
                ids.view(-1),
                previous_token_ids.shape[0],
                num_queries,
                pad_id,
            )
    return ids


def _on_device(given: dict[str, Tensor], result: Tensor) -> bool:
    """Whether there is something to do, after the check that one CUDA device holds everything."""
    check_device(**given)
    return result.numel() > 0


def _dtypes(given: dict[str, Tensor]) -> tuple[torch.dtype, ...]:
    return tuple(tensor.dtype for tensor in given.values())


def _filled(tensor: Tensor) -> Tensor:
    """The tensor, contiguous; a zero where it has no element."""
    return tensor.contiguous() if tensor.numel() else tensor.new_zeros([max(size, 1) for size in tensor.shape])


IMPLEMENTATIONS = tuple(
    implementation(function) for function in (correct_context_lengths, gather_token_ids, gather_ngram_ids)
)

COMPILE_EXAMPLES = {
    "correct_context_lengths": functools.partial(context_lengths_kernel, (torch.int32,) * 4),
    "gather_token_ids": functools.partial(token_ids_kernel, (torch.int32,) * 5),
    "gather_ngram_ids": functools.partial(ngram_ids_kernel, 2, (torch.int32,) * 7 + (torch.int64,)),
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
