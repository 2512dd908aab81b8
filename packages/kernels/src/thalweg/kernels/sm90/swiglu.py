"""The clamped SwiGLU with its cast to MXFP8 on Hopper."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_casts import empty_mxfp8, store_mxfp8
from thalweg.kernels.sm90.row_parts import GROUP, check_contiguous, row_shape
from thalweg.kernels.sm90.tensors import check_device


@functools.cache
def swiglu_kernel(width: int, is_weighted: bool, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for `width` columns of results; is_weighted: whether each row has a factor."""
    T = tilelang().language
    shape = row_shape("half of gate_up", width)
    vector, store = shape.vector, store_mxfp8(shape.vector)
    num_rows, num_weights = T.dynamic("n"), T.dynamic("num_weights")

    @T.prim_func
    def swiglu_quantize(
        gate_up: T.Tensor((num_rows, 2 * width), "bfloat16"),
        weights: T.Tensor((num_weights,), "float32"),
        codes: T.Tensor((num_rows, width), "float8_e4m3fn"),
        scales: T.Tensor((num_rows, width // GROUP), "uint8"),
        limit: T.float32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, shape.rows), threads=shape.threads) as block:
            T.import_source(cuda_source("swiglu.cuh"))
            row = block * shape.rows + T.get_thread_binding() // shape.row_threads
            place = T.get_thread_binding() % shape.row_threads
            gate = T.alloc_local((shape.rounds * vector,), "bfloat16")
            up = T.alloc_local((shape.rounds * vector,), "bfloat16")
            values = T.alloc_local((vector,), "float32")
            if row < num_rows:
                for k in T.unroll(shape.rounds):
                    for i in T.vectorized(vector):
                        gate[k * vector + i] = gate_up[row, (place + k * shape.row_threads) * vector + i]
                    for i in T.vectorized(vector):
                        up[k * vector + i] = gate_up[row, width + (place + k * shape.row_threads) * vector + i]
                weight = weights[row] if is_weighted else 1.0
                for k in T.unroll(shape.rounds):
                    for i in T.unroll(vector):
                        values[i] = weight * T.call_extern(
                            "float32",
                            "swiglu",
                            T.cast(gate[k * vector + i], "float32"),
                            T.cast(up[k * vector + i], "float32"),
                            limit,
                        )
                    store(values, codes, scales, row, place + k * shape.row_threads)

    return compiled(swiglu_quantize, architecture)


def swiglu_quantize(gate_up: Tensor, limit: float, weights: Tensor | None = None) -> Mxfp8Rows:
    """As the reference."""
    check_rows("gate_up", gate_up, torch.bfloat16, ("n", "2i"))
    num_rows, columns = gate_up.shape
    if columns % 2:
        raise ConfigError(f"gate_up has {columns} columns; the gate and up halves need an even number")
    check_contiguous(gate_up=gate_up)
    check_device(gate_up=gate_up)
    if weights is not None:
        check_rows("weights", weights, torch.float32, (num_rows,))
        check_device(gate_up=gate_up, weights=weights)
    row_shape("half of gate_up", columns // 2)
    result = empty_mxfp8(num_rows, columns // 2, gate_up.device)
    if num_rows:
        kernel = swiglu_kernel(columns // 2, weights is not None)
        factors = gate_up.new_empty(1, dtype=torch.float32) if weights is None else weights.contiguous()
        with torch.cuda.device(gate_up.device):
            kernel(gate_up, factors, result.codes.view(torch.float8_e4m3fn), result.scales, limit)
    return result


IMPLEMENTATIONS = (implementation(swiglu_quantize),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "swiglu_quantize": lambda architecture: swiglu_kernel(2304, True, architecture)
}
