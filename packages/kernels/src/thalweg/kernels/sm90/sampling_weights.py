"""Draws from weights that are given, and the mass of what is no more probable than a token, on Hopper.

A block takes a row. The body is CUDA C++ (cuda/weighted_rows.cuh), which TileLang launches. TileLang cannot express it:
which part of a row is looked at again depends on sums over its contents, and random numbers are hashes of 64 bits.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.sampling_random import checked_streams
from thalweg.kernels.sm90.sampling_rows import C_NAMES, nothing
from thalweg.kernels.sm90.tensors import check_device, check_integers, name_of, span

THREADS = 512
CHUNK, MOST_CHUNKS = 256, 2048
"""Columns that a warp sums at a time, and how many such chunks a row may have."""
SHARED_BYTES = MOST_CHUNKS * 8 + 12 * THREADS // 32
RESULTS = {"DRAWN": torch.int32, "RACED": torch.int32, "SMALLER": torch.float32}
"""What becomes of a row, by its name in cuda/weighted_rows.cuh: a token, a token, a mass."""


def _entry(use: str, position: str) -> str:
    """The source of the function that a kernel calls."""
    body = f"thalweg::WeightedRows<{THREADS}, {position}>"
    return (
        cuda_source("weighted_rows.cuh")
        + f"""
static_assert(sizeof({body}::Shared) <= {SHARED_BYTES});
__device__ __forceinline__ void use_row(const void* rows, const void* u, const void* seeds, const void* positions,
                                        const void* ids, void* out, long long stride, int columns, int row,
                                        void* memory) {{
  {body}::body<thalweg::{use}>(
      {{static_cast<const float*>(rows), static_cast<const double*>(u), static_cast<const unsigned long long*>(seeds),
       static_cast<const {position}*>(positions), static_cast<const int*>(ids), out, stride, columns}},
      row, memory);
}}
"""
    )


@functools.cache
def weights_kernel(use: str, position: torch.dtype = torch.int64, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for one use of rows, of RESULTS; position: dtype of positions."""
    T = tilelang().language
    source, result = _entry(use, C_NAMES[position]), RESULTS[use]
    n, num_weights = T.dynamic("n"), T.dynamic("num_weights", "int64")
    a, b, c, d = (T.dynamic(name) for name in "abcd")

    @T.prim_func
    def weighted_rows(
        rows: T.Tensor((num_weights,), "float32"),
        u: T.Tensor((a,), "float64"),
        seeds: T.Tensor((b,), "int64"),
        positions: T.Tensor((c,), name_of(position)),
        ids: T.Tensor((d,), "int32"),
        out: T.Tensor((n,), name_of(result)),
        stride: T.int64,
        columns: T.int32,
    ) -> None:
        with T.Kernel(n, threads=THREADS) as row:
            T.import_source(source)
            memory = T.alloc_shared((SHARED_BYTES,), "uint8")
            T.evaluate(
                T.call_extern(
                    "handle",
                    "use_row",
                    T.access_ptr(rows, "r"),
                    T.access_ptr(u, "r"),
                    T.access_ptr(seeds, "r"),
                    T.access_ptr(positions, "r"),
                    T.access_ptr(ids, "r"),
                    T.access_ptr(out, "w"),
                    stride,
                    columns,
                    row,
                    T.access_ptr(memory, "rw"),
                )
            )

    return compiled(weighted_rows, architecture)


def check_rows(name: str, rows: Tensor) -> None:
    """Raise ConfigError for rows over the vocabulary that kernels do not take."""
    check_shape(name, rows, ("n", "V"))
    if rows.dtype != torch.float32 or rows.stride(1) != 1:
        raise ConfigError(
            f"{name} are {rows.dtype} with strides {list(rows.stride())}; float32, those of a row next to each other, "
            "is required"
        )
    if not 0 < rows.shape[1] <= CHUNK * MOST_CHUNKS:
        raise ConfigError(f"{name} have {rows.shape[1]} columns; 1 to {CHUNK * MOST_CHUNKS} are served")


def _run(
    use: str,
    rows: Tensor,
    u: Tensor | None = None,
    streams: tuple[Tensor, Tensor] | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """What becomes of rows [n, V]: one number for each."""
    device = rows.device
    out = torch.empty(rows.shape[0], dtype=RESULTS[use], device=device)
    if rows.shape[0] > 0:
        long = nothing(device, torch.int64)
        seeds, positions = streams or (long, long)
        with torch.cuda.device(device):
            weights_kernel(use, positions.dtype)(
                span(rows),
                nothing(device, torch.float64) if u is None else u.contiguous(),
                seeds,
                positions,
                nothing(device, torch.int32) if ids is None else ids.int().contiguous(),
                out,
                rows.stride(0),
                rows.shape[1],
            )
    return out


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """As the reference, of float32 weights. Rows may lie apart; a row itself may not."""
    check_rows("weights", weights)
    check_shape("u", u, (weights.shape[0],))
    if u.dtype != torch.float64:
        raise ConfigError(f"u has dtype {u.dtype}; float64 is required")
    check_device(weights=weights, u=u)
    return _run("DRAWN", weights, u)


def coupled_draw(weights: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """As the reference, of float32 weights. Rows may lie apart; a row itself may not."""
    check_rows("weights", weights)
    streams = checked_streams(weights.shape[0], seeds, positions)
    check_device(weights=weights, seeds=seeds, positions=positions)
    return _run("RACED", weights, streams=streams)


def sum_smaller_probs(logprobs: Tensor, token_ids: Tensor) -> Tensor:
    """As the reference. Rows may lie apart; a row itself may not."""
    check_rows("logprobs", logprobs)
    check_shape("token_ids", token_ids, (logprobs.shape[0],))
    check_integers("token_ids", token_ids)
    check_device(logprobs=logprobs, token_ids=token_ids)
    return _run("SMALLER", logprobs, ids=token_ids)


IMPLEMENTATIONS = tuple(implementation(function) for function in (draw, coupled_draw, sum_smaller_probs))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    use.lower(): functools.partial(weights_kernel, use, torch.int64) for use in RESULTS
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
