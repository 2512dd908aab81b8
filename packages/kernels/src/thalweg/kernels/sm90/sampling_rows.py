"""What is made of a row of logits by temperature and filters, on Hopper: the kernel, and how rows reach it.

The body is CUDA C++ (cuda/filtered_rows.cuh), which TileLang launches. TileLang cannot express it: how often a row is
looked at and what is kept of it depend on its contents, and blocks of a cluster read each other's shared memory.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.filters import check_filters
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, name_of, span

THREADS = 256
BLOCK_COLUMNS, MOST_BLOCKS = 16384, 8
"""A row goes to as many blocks as give none of them more columns, as far as there may be so many."""
FIXED_BYTES = 11_264
"""Shared memory of a block beside its columns."""
MOST_BYTES, SHARED_BY_THREE = 232_448, 76_800
"""Shared memory that a block may have, and that each of three on a processor may have."""
C_NAMES = {torch.int32: "int", torch.int64: "long long", torch.float32: "float", torch.float64: "double"}


class Make(NamedTuple):
    """What becomes of a row."""

    name: str
    """Of cuda/filtered_rows.cuh."""
    has_filters: bool
    """Whether temperature and filters are read; without, they are as if off."""
    out: torch.dtype


LOGPROBS = Make("LOGPROBS", True, torch.float32)
PLAIN_LOGPROBS = Make("LOGPROBS", False, torch.float32)
MASK = Make("MASK", True, torch.uint8)
KEPT = Make("KEPT", False, torch.float32)
LARGEST = Make("LARGEST", False, torch.float32)
ARGMAX = Make("ARGMAX", False, torch.int32)
FRESH = Make("FRESH", True, torch.int32)
COUPLED = Make("COUPLED", True, torch.int32)


def blocks_of_row(vocabulary: int) -> int:
    """How many blocks share a row."""
    count = 1
    while count < MOST_BLOCKS and -(-vocabulary // count) > BLOCK_COLUMNS:
        count *= 2
    return count


def capacity_of(vocabulary: int) -> int:
    """Columns that each of them has room for: the same for most vocabularies, so that they share kernels."""
    columns = -(-vocabulary // (4 * blocks_of_row(vocabulary))) * 4
    return max(BLOCK_COLUMNS, -(-columns // 1024) * 1024)


def shared_bytes(capacity: int) -> int:
    """Shared memory of a block."""
    return FIXED_BYTES + 4 * capacity


def _entry(body: str, probability: str, position: str) -> str:
    """The source of the function that a kernel calls."""
    return (
        cuda_source("filtered_rows.cuh")
        + f"""
static_assert(sizeof({body}::Shared) <= {FIXED_BYTES});
__device__ __forceinline__ void make_rows(const void* logits, const void* temperature, const void* top_p,
                                          const void* min_p, const void* top_k, const void* seeds,
                                          const void* positions, void* out, void* ids, long long row_stride,
                                          long long out_stride, int vocabulary, int count, int place, void* memory) {{
  {body}::body({{static_cast<const float*>(logits), static_cast<const float*>(temperature),
      static_cast<const {probability}*>(top_p), static_cast<const {probability}*>(min_p),
      static_cast<const int*>(top_k), static_cast<const unsigned long long*>(seeds),
      static_cast<const {position}*>(positions), out, ids, row_stride, out_stride, vocabulary, count}},
      place, memory);
}}
"""
    )


@functools.cache
def rows_kernel(
    make: Make,
    blocks: int,
    capacity: int,
    probability: torch.dtype = torch.float32,
    position: torch.dtype = torch.int64,
    architecture: str = ARCHITECTURE,
) -> Any:
    """The compiled kernel for as many blocks per row. probability: dtype of top-p and min-p; position: of positions."""
    T = tilelang().language
    memory_bytes, (wide, place_type) = shared_bytes(capacity), (C_NAMES[probability], C_NAMES[position])
    arguments = f"{THREADS}, {blocks}, thalweg::{make.name}, {str(make.has_filters).lower()}, {wide}, {place_type}"
    source = _entry(f"thalweg::FilteredRows<{arguments}>", wide, place_type)
    num_logits, num_out, num_ids = T.dynamic("num_logits", "int64"), T.dynamic("num_out", "int64"), T.dynamic("num_ids")
    a, b, c, d, e, f = (T.dynamic(name) for name in "abcdef")
    per_processor = 3 if memory_bytes <= SHARED_BY_THREE else 1

    @T.prim_func
    def filtered_rows(
        logits: T.Tensor((num_logits,), "float32"),
        temperature: T.Tensor((a,), "float32"),
        top_p: T.Tensor((b,), name_of(probability)),
        top_k: T.Tensor((c,), "int32"),
        min_p: T.Tensor((d,), name_of(probability)),
        seeds: T.Tensor((e,), "int64"),
        positions: T.Tensor((f,), name_of(position)),
        out: T.Tensor((num_out,), name_of(make.out)),
        ids: T.Tensor((num_ids,), "int32"),
        num_rows: T.int32,
        row_stride: T.int64,
        out_stride: T.int64,
        vocabulary: T.int32,
        count: T.int32,
    ) -> None:
        with T.Kernel(num_rows * blocks, threads=THREADS, cluster_dims=(blocks, 1, 1)) as place:
            T.import_source(source)
            T.annotate_min_blocks_per_sm(per_processor)
            memory = T.alloc_shared((memory_bytes,), "uint8")
            T.evaluate(
                T.call_extern(
                    "handle",
                    "make_rows",
                    T.access_ptr(logits, "r"),
                    T.access_ptr(temperature, "r"),
                    T.access_ptr(top_p, "r"),
                    T.access_ptr(min_p, "r"),
                    T.access_ptr(top_k, "r"),
                    T.access_ptr(seeds, "r"),
                    T.access_ptr(positions, "r"),
                    T.access_ptr(out, "w"),
                    T.access_ptr(ids, "w"),
                    row_stride,
                    out_stride,
                    vocabulary,
                    count,
                    place,
                    T.access_ptr(memory, "rw"),
                )
            )

    return compiled(filtered_rows, architecture)


@functools.cache
def nothing(device: torch.device, dtype: torch.dtype) -> Tensor:
    """What a kernel gets in place of a tensor that it does not read."""
    return torch.empty(1, dtype=dtype, device=device)


def check_logits(logits: Tensor, name: str = "logits") -> None:
    """Raise ConfigError for rows that the kernel does not take."""
    check_shape(name, logits, ("n", "V"))
    if logits.dtype != torch.float32:
        raise ConfigError(f"{name} has dtype {logits.dtype}; kernels of sm90 take float32")
    if logits.shape[1] == 0:
        raise ConfigError(f"{name} has no columns; at least one token is required")
    if logits.stride(1) != 1:
        raise ConfigError(f"{name} has strides {list(logits.stride())}; a last stride of 1 is required")
    if shared_bytes(capacity_of(logits.shape[1])) > MOST_BYTES:
        most = (MOST_BYTES - FIXED_BYTES) // 4096 * 1024 * MOST_BLOCKS
        raise ConfigError(f"{name} has {logits.shape[1]} columns; up to {most} are served")
    check_device(**{name: logits})


class Parameters(NamedTuple):
    """Of each row, as the kernel takes them."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor


def row_parameters(
    logits: Tensor, temperature: Tensor | None, top_p: Tensor, top_k: Tensor, min_p: Tensor
) -> Parameters:
    """Checked and converted. Raises ConfigError for those that do not fit rows of logits [n, V]."""
    check_filters(logits, temperature, top_p, top_k, min_p)
    given = {"top_p": top_p, "top_k": top_k, "min_p": min_p}
    if temperature is not None:
        given = {"temperature": temperature, **given}
    check_device(logits=logits, **given)
    wide = torch.float32 if top_p.dtype == min_p.dtype == torch.float32 else torch.float64
    first = nothing(logits.device, torch.float32) if temperature is None else temperature.float().contiguous()
    k = top_k if top_k.dtype == torch.int32 else top_k.clamp(-1, logits.shape[1]).int()
    return Parameters(first, top_p.to(wide).contiguous(), k.contiguous(), min_p.to(wide).contiguous())


def run_rows(
    make: Make,
    logits: Tensor,
    out: Tensor,
    parameters: Parameters | None = None,
    streams: tuple[Tensor, Tensor] | None = None,
    ids: Tensor | None = None,
    count: int = 0,
) -> None:
    """One launch over rows of logits [n, V]; without rows none.

    out, and ids where there are any, have one row or number per row of logits. streams: seeds int64 [n] and positions.
    count: how many values a row keeps or lists.
    """
    num_rows, vocabulary = logits.shape
    if num_rows == 0:
        return
    device = logits.device
    floats, long = nothing(device, torch.float32), nothing(device, torch.int64)
    given = parameters or Parameters(floats, floats, nothing(device, torch.int32), floats)
    seeds, positions = streams or (long, long)
    kernel = rows_kernel(make, blocks_of_row(vocabulary), capacity_of(vocabulary), given.top_p.dtype, positions.dtype)
    with torch.cuda.device(device):
        kernel(
            span(logits.detach()),
            *given,
            seeds,
            positions,
            span(out.detach()),
            nothing(device, torch.int32) if ids is None else span(ids),
            num_rows,
            logits.stride(0),
            out.stride(0),
            vocabulary,
            count,
        )
