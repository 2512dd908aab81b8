"""Random numbers that depend on a seed and a position alone, on Hopper. Hashes of 64 bits are CUDA C++."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.reference.random_numbers import COIN, FRESH, RESIDUAL, check_streams
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, name_of

THREADS = 128
FUNCTIONS = """
__device__ __forceinline__ long long hash_of(long long x) {
  return static_cast<long long>(thalweg::splitmix(static_cast<unsigned long long>(x)));
}
__device__ __forceinline__ double number_of(long long seed, long long position, int which) {
  return thalweg::unit_interval(thalweg::stream_of(static_cast<unsigned long long>(seed), position, which));
}
"""


@functools.cache
def hash_kernel(architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `splitmix_hash`."""
    T = tilelang().language
    n, source = T.dynamic("n"), cuda_source("random_numbers.cuh") + FUNCTIONS

    @T.prim_func
    def splitmix_hash(x: T.Tensor((n,), "int64"), out: T.Tensor((n,), "int64")) -> None:
        with T.Kernel(T.ceildiv(n, THREADS), threads=THREADS) as block:
            T.import_source(source)
            i = block * THREADS + T.get_thread_binding()
            if i < n:
                out[i] = T.call_extern("int64", "hash_of", x[i])

    return compiled(splitmix_hash, architecture)


@functools.cache
def uniform_kernel(position: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `uniform`; position: dtype of positions."""
    T = tilelang().language
    n, source = T.dynamic("n"), cuda_source("random_numbers.cuh") + FUNCTIONS

    @T.prim_func
    def uniform(
        seeds: T.Tensor((n,), "int64"),
        positions: T.Tensor((n,), name_of(position)),
        out: T.Tensor((n,), "float64"),
        case: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(n, THREADS), threads=THREADS) as block:
            T.import_source(source)
            i = block * THREADS + T.get_thread_binding()
            if i < n:
                out[i] = T.call_extern("float64", "number_of", seeds[i], T.cast(positions[i], "int64"), case)

    return compiled(uniform, architecture)


def checked_streams(num_rows: int, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Seeds as int64 and positions, each of so many rows. Raises ConfigError for others."""
    check_streams(num_rows, seeds, positions)
    return seeds.view(torch.int64).contiguous(), positions.contiguous()


def splitmix_hash(x: Tensor) -> Tensor:
    """As the reference, of int64."""
    if x.dtype != torch.int64:
        raise ConfigError(f"x has dtype {x.dtype}; int64 is required")
    check_device(x=x)
    given = x.contiguous().view(-1)
    out = torch.empty_like(given)
    if given.shape[0] > 0:
        with torch.cuda.device(x.device):
            hash_kernel()(given, out)
    return out.view(x.shape)


def uniform(seeds: Tensor, positions: Tensor, case: int = FRESH) -> Tensor:
    """As the reference, of one-dimensional tensors."""
    if case not in (FRESH, RESIDUAL, COIN):
        raise ConfigError(f"case is {case}; 0 (fresh), 1 (residual) and 2 (acceptance coin) are accepted")
    check_shape("seeds", seeds, ("n",))
    streams = checked_streams(seeds.shape[0], seeds, positions)
    check_device(seeds=seeds, positions=positions)
    out = torch.empty(seeds.shape[0], dtype=torch.float64, device=seeds.device)
    if out.shape[0] > 0:
        with torch.cuda.device(out.device):
            uniform_kernel(positions.dtype)(*streams, out, case)
    return out


IMPLEMENTATIONS = tuple(implementation(function) for function in (splitmix_hash, uniform))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "splitmix_hash": hash_kernel,
    "uniform": functools.partial(uniform_kernel, torch.int64),
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
