"""Deterministic selection on Hopper: the k largest scores of every row, lower columns first among equal ones.

The body is CUDA C++ (cuda/topk.cuh), which TileLang launches. TileLang cannot express it: how much of a row is read a
second time, what is counted and what is written depend on its contents, thread by thread, with sums over threads and
bits in words between one part and the next.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_count, check_shape
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, check_integers, processors, span

MAX_COLUMNS = 1 << 20
THREADS = 512
"""Of a block, which has a row; two of them fit on a processor."""
AHEAD = {1: 2, 2: 1}
"""Flights of 8 loads that a thread waits for at a time, by the blocks for which a processor has registers."""
KEPT = 3072
"""Chunks of 8 scores that a block has room for; rows where more may have selected scores take longer."""
BINS, CHUNK, HOT = 2048, 8, 4096


def _shared_bytes() -> int:
    words = MAX_COLUMNS // CHUNK // 32 + 1
    return 20 * KEPT + 8 * BINS + 2 * HOT + 6 * words + 20 * THREADS // 32 + 64


def _entry(ahead: int) -> str:
    """The source of the function that a kernel calls."""
    body = f"thalweg::Topk<{THREADS}, {MAX_COLUMNS}, {KEPT}, {ahead}>"
    return (
        cuda_source("topk.cuh")
        + f"""
static_assert(sizeof({body}::Shared) <= {_shared_bytes()});
__device__ __forceinline__ void select_topk(const void* scores, const void* visible, void* ids, long long row_stride,
                                            int columns, int k, int per_entry, void* memory) {{
  {body}::body(
      thalweg::TopkArguments{{static_cast<const __nv_bfloat16*>(scores), static_cast<const int*>(visible),
                             static_cast<int*>(ids), row_stride, columns, k, per_entry}},
      memory);
}}
"""
    )


@functools.cache
def topk_kernel(blocks_per_processor: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for one or two blocks at a time; rows, columns and k are arguments."""
    T = tilelang().language
    source, shared_bytes = _entry(AHEAD[blocks_per_processor]), _shared_bytes()
    num_rows, num_scores, num_ids = T.dynamic("num_rows"), T.dynamic("num_scores", "int64"), T.dynamic("n", "int64")

    @T.prim_func
    def select_topk(
        scores: T.Tensor((num_scores,), "bfloat16"),
        visible: T.Tensor((num_rows,), "int32"),
        ids: T.Tensor((num_ids,), "int32"),
        row_stride: T.int64,
        columns: T.int32,
        k: T.int32,
        per_entry: T.int32,
    ) -> None:
        with T.Kernel(num_rows, threads=THREADS):
            T.import_source(source)
            T.annotate_min_blocks_per_sm(blocks_per_processor)
            memory = T.alloc_shared((shared_bytes,), "uint8")
            T.evaluate(
                T.call_extern(
                    "handle",
                    "select_topk",
                    T.access_ptr(scores, "r"),
                    T.access_ptr(visible, "r"),
                    T.access_ptr(ids, "w"),
                    row_stride,
                    columns,
                    k,
                    per_entry,
                    T.access_ptr(memory, "rw"),
                )
            )

    return compiled(select_topk, architecture)


def select_topk(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """As the reference, of bfloat16 scores without NaN. Rows may lie apart; a row itself may not."""
    return _select(scores, visible, k, 1)


def select_candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, topk_blocks: int) -> Tensor:
    """As the reference, of bfloat16 scores without NaN. Rows may lie apart; a row itself may not."""
    check_count("block_size", block_size, 1)
    return _select(scores, visible, topk_blocks, block_size)


def _select(scores: Tensor, visible: Tensor, k: int, per_entry: int) -> Tensor:
    """The k best of the first ceil(visible / per_entry) columns."""
    check_shape("scores", scores, ("n", "S"))
    rows, columns = scores.shape
    check_shape("visible", visible, (rows,))
    check_count("k", k)
    if columns > MAX_COLUMNS:
        raise ConfigError(f"scores have {columns} columns; up to {MAX_COLUMNS} are served")
    if scores.dtype != torch.bfloat16 or scores.stride(-1) != 1:
        raise ConfigError(
            f"scores are {scores.dtype} with strides {list(scores.stride())}; bfloat16, those of a row next to each "
            "other, is required"
        )
    check_device(scores=scores, visible=visible)
    check_integers("visible", visible)
    ids = torch.empty(rows, k, dtype=torch.int32, device=scores.device)
    if 0 in ids.shape:
        return ids
    if columns == 0:
        return ids.fill_(-1)
    kernel = topk_kernel(1 if rows <= processors(scores.device) else 2)
    with torch.cuda.device(scores.device):
        kernel(span(scores), visible.int().contiguous(), ids.view(-1), scores.stride(0), columns, k, per_entry)
    return ids


IMPLEMENTATIONS = (
    implementation(select_topk),
    implementation(select_candidate_blocks),
)
COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "select_topk": functools.partial(topk_kernel, 1),
    "select_topk_of_many_rows": functools.partial(topk_kernel, 2),
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
