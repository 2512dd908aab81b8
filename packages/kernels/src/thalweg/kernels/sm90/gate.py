"""The choice of experts by a row's logits, on Hopper: one warp per row, in one launch."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.moe import check_masks
from thalweg.kernels.reference.packed_linear import check_gate
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device

WARP = 32
WARPS = 4
"""Rows of a block."""
ALL_LANES = 0xFFFFFFFF
LARGEST = 0x7FFFFFFF
CHOSEN = -LARGEST - 1


@functools.cache
def topk_gate_kernel(
    experts: int, topk: int, scaling: float, has_images: bool, has_valid: bool, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel for a number of experts. Lane i holds experts i, i + 32, ...

    A biased score is seen as an integer of the same order, and CHOSEN is what has been chosen or is no expert.
    """
    T = tilelang().language
    n = T.dynamic("n")
    each = -(-experts // WARP)

    @T.prim_func
    def topk_gate(
        logits: T.Tensor((n, experts), "float32"),
        bias: T.Tensor((experts,), "float32"),
        image_bias: T.Tensor((experts,), "float32"),
        image_mask: T.Tensor((n,), "uint8"),
        valid_mask: T.Tensor((n,), "uint8"),
        ids: T.Tensor((n, topk), "int64"),
        weights: T.Tensor((n, topk), "float32"),
    ) -> None:
        with T.Kernel(T.ceildiv(n, WARPS), threads=WARP * WARPS) as block:
            lane = T.get_thread_binding() % WARP
            row = block * WARPS + T.get_thread_binding() // WARP
            if row < n:
                scores = T.alloc_local((each,), "float32")
                keys = T.alloc_local((each,), "int32")
                for i in T.unroll(each):
                    expert = i * WARP + lane
                    keys[i] = CHOSEN
                    scores[i] = 0.0
                    if expert < experts:
                        x = T.alloc_var("float32")
                        x = logits[row, expert]
                        if x <= 20.0:
                            x = T.log1p(T.exp(x))
                        scores[i] = T.sqrt(x)
                        added = T.alloc_var("float32")
                        added = bias[expert]
                        if has_images and image_mask[row] != 0:
                            added = image_bias[expert]
                        bits = T.reinterpret(scores[i] + added, "int32")
                        keys[i] = T.if_then_else(bits < 0, T.bitwise_xor(bits, LARGEST), bits)
                chosen = T.alloc_var("int32")
                weight = T.alloc_var("float32")
                total = T.alloc_var("float32")
                chosen = -1
                weight = 0.0
                total = 0.0
                for slot in T.unroll(topk):
                    best = T.alloc_var("int32")
                    best = keys[0]
                    for i in T.unroll(1, each):
                        best = T.max(best, keys[i])
                    best = T.call_extern("int32", "__reduce_max_sync", T.uint32(ALL_LANES), best)
                    mine = T.alloc_var("int32")
                    mine = LARGEST
                    for i in T.unroll(each):
                        if keys[each - 1 - i] == best:
                            mine = (each - 1 - i) * WARP + lane
                    first = T.alloc_var("int32")
                    first = T.call_extern("int32", "__reduce_min_sync", T.uint32(ALL_LANES), mine)
                    score = T.alloc_var("float32")
                    score = 0.0
                    for i in T.unroll(each):
                        if i * WARP + lane == first:
                            keys[i] = CHOSEN
                            score = scores[i]
                    score = T.shfl_sync(score, first % WARP)
                    total = total + score
                    if lane == slot:
                        chosen = first
                        weight = score
                if lane < topk:
                    is_valid = T.alloc_var("bool")
                    is_valid = True
                    if has_valid:
                        is_valid = valid_mask[row] != 0
                    ids[row, lane] = T.if_then_else(is_valid, T.cast(chosen, "int64"), T.int64(-1))
                    weights[row, lane] = T.if_then_else(is_valid, weight / (total + 1e-20) * scaling, 0.0)

    return compiled(topk_gate, architecture)


def topk_gate(
    logits: Tensor,
    bias: Tensor | None,
    topk: int,
    scaling: float,
    image_bias: Tensor | None = None,
    image_mask: Tensor | None = None,
    valid_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As the reference, in one launch. At most 32 experts can be chosen; biases are float32."""
    check_gate(logits, topk)
    n, experts = logits.shape
    if topk > WARP:
        raise ConfigError(f"topk is {topk}; at most {WARP} are supported")
    check_masks(logits, bias, image_bias, image_mask, valid_mask)
    biases = {"bias": bias, "image_bias": image_bias}
    masks = {"image_mask": image_mask, "valid_mask": valid_mask}
    _check(logits, biases, masks)
    ids = torch.empty(n, topk, dtype=torch.int64, device=logits.device)
    weights = torch.empty(n, topk, dtype=torch.float32, device=logits.device)
    if n == 0:
        return ids, weights
    kernel = topk_gate_kernel(experts, topk, float(scaling), image_mask is not None, valid_mask is not None)
    if bias is None:
        bias = torch.zeros(experts, dtype=torch.float32, device=logits.device)
    seen = [mask.contiguous().view(torch.uint8) for mask in masks.values() if mask is not None]
    unused = weights.view(torch.uint8).flatten()[:n]
    image_bytes = seen[0] if image_mask is not None else unused
    valid_bytes = seen[-1] if valid_mask is not None else unused
    with torch.cuda.device(logits.device):
        kernel(
            logits.contiguous(),
            bias,
            bias if image_mask is None else image_bias,
            image_bytes,
            valid_bytes,
            ids,
            weights,
        )
    return ids, weights


def _check(logits: Tensor, biases: dict[str, Tensor | None], masks: dict[str, Tensor | None]) -> None:
    """Raise ConfigError, which names it, for a tensor that the kernel cannot read."""
    check_device(logits=logits, **{name: tensor for name, tensor in (biases | masks).items() if tensor is not None})
    for name, tensor in biases.items():
        if tensor is not None and tensor.dtype != torch.float32:
            raise ConfigError(f"{name} has dtype {tensor.dtype}; torch.float32 is required")


IMPLEMENTATIONS = (implementation(topk_gate),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "topk_gate 6 of 384": lambda architecture: topk_gate_kernel(384, 6, 2.5, True, True, architecture),
}
