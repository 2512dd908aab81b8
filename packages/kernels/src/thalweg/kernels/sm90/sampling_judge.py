"""What rejection sampling makes of single drafts, on Hopper: a block per row.

The body is CUDA C++ (cuda/judged_rows.cuh) for the reasons of sampling_weights.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.reference.verification import ALPHA, Verdicts, check_judged
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.sampling_random import checked_streams
from thalweg.kernels.sm90.sampling_rows import C_NAMES
from thalweg.kernels.sm90.sampling_weights import SHARED_BYTES, THREADS, check_rows
from thalweg.kernels.sm90.tensors import check_device, name_of, span


def _entry(position: str) -> str:
    """The source of the function that a kernel calls."""
    body = f"thalweg::JudgedRows<{THREADS}, {position}>"
    return (
        cuda_source("judged_rows.cuh")
        + f"""
static_assert(sizeof({body}::Shared) <= {SHARED_BYTES});
__device__ __forceinline__ void judge_row(const void* logprobs, const void* ids, const void* has_draft,
                                          const void* drafts, const void* draft_rows, const void* entries,
                                          const void* seeds, const void* positions, void* tokens, void* is_accepted,
                                          void* accept_probs, void* drawn_with, long long stride,
                                          long long draft_stride, long long num_draft_rows, int columns, int keeps,
                                          int row, void* memory) {{
  {body}::body(
      {{static_cast<const float*>(logprobs), static_cast<const int*>(ids),
       static_cast<const unsigned char*>(has_draft), static_cast<const float*>(drafts),
       static_cast<const long long*>(draft_rows), static_cast<const long long*>(entries),
       static_cast<const unsigned long long*>(seeds), static_cast<const {position}*>(positions),
       static_cast<int*>(tokens), static_cast<unsigned char*>(is_accepted), static_cast<float*>(accept_probs),
       static_cast<float*>(drawn_with), stride, draft_stride, num_draft_rows, columns, keeps}},
      row, {ALPHA!r}, memory);
}}
"""
    )


@functools.cache
def judge_kernel(position: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `judge_drafts`; position: dtype of positions.

    entries [R]: for each row of logprobs, the place of its draft and of its verdict among T.
    """
    T = tilelang().language
    source = _entry(C_NAMES[position])
    n, t, num_logprobs = T.dynamic("n"), T.dynamic("t"), T.dynamic("num_logprobs", "int64")
    num_drafts = T.dynamic("num_drafts", "int64")

    @T.prim_func
    def judge_drafts(
        logprobs: T.Tensor((num_logprobs,), "float32"),
        draft_ids: T.Tensor((t,), "int32"),
        has_draft: T.Tensor((t,), "uint8"),
        draft_logprobs: T.Tensor((num_drafts,), "float32"),
        draft_rows: T.Tensor((t,), "int64"),
        entries: T.Tensor((n,), "int64"),
        seeds: T.Tensor((n,), "int64"),
        positions: T.Tensor((n,), name_of(position)),
        token_ids: T.Tensor((t,), "int32"),
        is_accepted: T.Tensor((t,), "uint8"),
        accept_probs: T.Tensor((t,), "float32"),
        drawn_with: T.Tensor((t,), "float32"),
        stride: T.int64,
        draft_stride: T.int64,
        num_draft_rows: T.int64,
        columns: T.int32,
        keeps: T.int32,
    ) -> None:
        with T.Kernel(n, threads=THREADS) as row:
            T.import_source(source)
            memory = T.alloc_shared((SHARED_BYTES,), "uint8")
            T.evaluate(
                T.call_extern(
                    "handle",
                    "judge_row",
                    T.access_ptr(logprobs, "r"),
                    T.access_ptr(draft_ids, "r"),
                    T.access_ptr(has_draft, "r"),
                    T.access_ptr(draft_logprobs, "r"),
                    T.access_ptr(draft_rows, "r"),
                    T.access_ptr(entries, "r"),
                    T.access_ptr(seeds, "r"),
                    T.access_ptr(positions, "r"),
                    T.access_ptr(token_ids, "rw"),
                    T.access_ptr(is_accepted, "w"),
                    T.access_ptr(accept_probs, "w"),
                    T.access_ptr(drawn_with, "w"),
                    stride,
                    draft_stride,
                    num_draft_rows,
                    columns,
                    keeps,
                    row,
                    T.access_ptr(memory, "rw"),
                )
            )

    return compiled(judge_drafts, architecture)


def judge_into(
    verdicts: Verdicts,
    entries: Tensor,
    logprobs: Tensor,
    draft_ids: Tensor,
    has_draft: Tensor,
    draft_logprobs: Tensor,
    draft_rows: Tensor,
    streams: tuple[Tensor, Tensor],
    *,
    keeps: bool,
) -> None:
    """Write the verdicts of rows of logprobs [R, V] into entries int64 [R] of verdicts [T], in place.

    draft_ids int32, has_draft bool and draft_rows int64 are [T], too. keeps: where nothing can be drawn, the token that
    is there stays.
    """
    if logprobs.shape[0] == 0:
        return
    with torch.cuda.device(logprobs.device):
        judge_kernel(streams[1].dtype)(
            span(logprobs),
            draft_ids,
            has_draft.view(torch.uint8),
            span(draft_logprobs),
            draft_rows,
            entries,
            *streams,
            verdicts.token_ids,
            verdicts.is_accepted.view(torch.uint8),
            verdicts.accept_probs,
            verdicts.draft_logprobs,
            logprobs.stride(0),
            draft_logprobs.stride(0),
            draft_logprobs.shape[0],
            logprobs.shape[1],
            int(keeps),
        )


def empty_verdicts(num_rows: int, device: torch.device) -> Verdicts:
    """Of so many rows, without contents."""
    return Verdicts(
        torch.empty(num_rows, dtype=torch.int32, device=device),
        torch.empty(num_rows, dtype=torch.bool, device=device),
        torch.empty(num_rows, dtype=torch.float32, device=device),
        torch.empty(num_rows, dtype=torch.float32, device=device),
    )


def judge_drafts(
    logprobs: Tensor,
    draft_ids: Tensor,
    has_draft: Tensor,
    draft_logprobs: Tensor,
    draft_rows: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Verdicts:
    """As the reference, of float32 rows that may lie apart; a row itself may not.

    Nothing is read back, so that draft_rows are not refused: a draft of a row beyond the last one does not hold.
    """
    check_rows("logprobs", logprobs)
    check_rows("draft_logprobs", draft_logprobs)
    check_judged(logprobs, draft_ids, has_draft, draft_logprobs, draft_rows, seeds, positions)
    n = logprobs.shape[0]
    streams = checked_streams(n, seeds, positions)
    check_device(
        logprobs=logprobs,
        draft_ids=draft_ids,
        has_draft=has_draft,
        draft_logprobs=draft_logprobs,
        draft_rows=draft_rows,
        seeds=seeds,
        positions=positions,
    )
    verdicts = empty_verdicts(n, logprobs.device)
    judge_into(
        verdicts,
        torch.arange(n, device=logprobs.device),
        logprobs,
        draft_ids.int().contiguous(),
        has_draft.contiguous(),
        draft_logprobs,
        draft_rows.long().contiguous(),
        streams,
        keeps=False,
    )
    return verdicts


IMPLEMENTATIONS = (implementation(judge_drafts),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {"judge_drafts": functools.partial(judge_kernel, torch.int64)}
"""Kernels by name, to be compiled for an architecture without a GPU."""
