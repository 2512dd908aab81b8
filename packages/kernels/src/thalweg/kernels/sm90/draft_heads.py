"""What a drafter on the target's hidden states reads and says, on Hopper: features, and confidence in a draft."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.drafting import CONFIDENCE_LIMIT
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_parts import (
    WARP,
    check_contiguous,
    check_weight,
    row_shape,
)
from thalweg.kernels.sm90.tensors import check_device, name_of

CONFIDENCE_WARPS = 8


@functools.cache
def feature_kernel(streams: int, width: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of target_feature."""
    T = tilelang().language
    shape = row_shape("trunk", width)
    vector, num_rows = shape.vector, T.dynamic("n")

    @T.prim_func
    def target_feature(
        trunk: T.Tensor((num_rows, streams, width), "bfloat16"),
        feature: T.Tensor((num_rows, width), "bfloat16"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, shape.rows), threads=shape.threads) as block:
            row = block * shape.rows + T.get_thread_binding() // shape.row_threads
            place = T.get_thread_binding() % shape.row_threads
            raw = T.alloc_local((streams * vector,), "bfloat16")
            total = T.alloc_local((vector,), "float32")
            if row < num_rows:
                for k in T.unroll(shape.rounds):
                    for j in T.unroll(streams):
                        for i in T.vectorized(vector):
                            raw[j * vector + i] = trunk[row, j, (place + k * shape.row_threads) * vector + i]
                    for i in T.unroll(vector):
                        total[i] = T.cast(raw[i], "float32")
                    for j in T.unroll(streams - 1):
                        for i in T.unroll(vector):
                            total[i] = total[i] + T.cast(raw[(j + 1) * vector + i], "float32")
                    for i in T.unroll(vector):
                        total[i] = total[i] / T.float32(streams)
                    for i in T.vectorized(vector):
                        feature[row, (place + k * shape.row_threads) * vector + i] = total[i]

    return compiled(target_feature, architecture)


@functools.cache
def confidence_kernel(width: int, markov_width: int, weight_type: str, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of confidence: a block of a few warps has one row."""
    T = tilelang().language
    threads, num_rows = WARP * CONFIDENCE_WARPS, T.dynamic("n")

    @T.prim_func
    def confidence(
        hidden: T.Tensor((num_rows, width), "bfloat16"),
        markov: T.Tensor((num_rows, max(markov_width, 1)), "bfloat16"),
        weight: T.Tensor((width + markov_width,), weight_type),
        result: T.Tensor((num_rows,), "float32"),
        temperature: T.float32,
    ) -> None:
        with T.Kernel(num_rows, threads=threads) as row:
            thread = T.get_thread_binding()
            parts = T.alloc_shared((CONFIDENCE_WARPS,), "float32")
            total = T.alloc_var("float32")
            total = 0.0
            for k in T.unroll(-(-width // threads)):
                if k * threads + thread < width:
                    total = total + T.cast(hidden[row, k * threads + thread], "float32") * T.cast(
                        weight[k * threads + thread], "float32"
                    )
            for k in T.unroll(-(-markov_width // threads)):
                if k * threads + thread < markov_width:
                    total = total + T.cast(markov[row, k * threads + thread], "float32") * T.cast(
                        weight[width + k * threads + thread], "float32"
                    )
            for step in T.unroll(5):
                total = total + T.shfl_xor(total, 16 >> step)
            if thread % WARP == 0:
                parts[thread // WARP] = total
            T.sync_threads()
            if thread == 0:
                total = 0.0
                for warp in T.unroll(CONFIDENCE_WARPS):
                    total = total + parts[warp]
                logit = T.max(T.min(total / temperature, T.float32(CONFIDENCE_LIMIT)), T.float32(-CONFIDENCE_LIMIT))
                result[row] = 1.0 / (1.0 + T.exp(-logit))

    return compiled(confidence, architecture)


def target_feature(trunk: Tensor) -> Tensor:
    """As the reference, for bfloat16."""
    check_rows("trunk", trunk, torch.bfloat16, ("T", "S", "h"))
    n, streams, width = trunk.shape
    if streams == 0:
        raise ConfigError("trunk has 0 streams; at least 1 is needed")
    row_shape("trunk", width)
    check_contiguous(trunk=trunk)
    check_device(trunk=trunk)
    feature = torch.empty(n, width, dtype=torch.bfloat16, device=trunk.device)
    if n:
        with torch.cuda.device(trunk.device):
            feature_kernel(streams, width)(trunk, feature)
    return feature


def confidence(hidden: Tensor, markov: Tensor | None, weight: Tensor, temperature: float) -> Tensor:
    """As the reference, for bfloat16 rows, whose weight is float32 or bfloat16."""
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}; it must be above 0")
    check_rows("hidden", hidden, torch.bfloat16, ("n", "h"))
    n, width = hidden.shape
    extra = 0
    if markov is not None:
        check_rows("markov", markov, torch.bfloat16, (n, "r"))
        extra = markov.shape[1]
    check_weight("weight", weight, (width + extra,))
    check_device(hidden=hidden, weight=weight, markov=hidden if markov is None else markov)
    result = torch.empty(n, dtype=torch.float32, device=hidden.device)
    if n:
        rows = hidden.new_empty(n, 1) if markov is None else markov.contiguous()
        with torch.cuda.device(hidden.device):
            kernel = confidence_kernel(width, extra, name_of(weight.dtype))
            kernel(hidden.contiguous(), rows, weight, result, temperature)
    return result


IMPLEMENTATIONS = tuple(implementation(function) for function in (target_feature, confidence))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "target_feature": lambda architecture: feature_kernel(4, 5120, architecture),
    "confidence": lambda architecture: confidence_kernel(5120, 256, "bfloat16", architecture),
}
