"""Pooling of the compressor on Hopper: a thread owns four channels of a row, in the batch and in the ring alike.

So nobody but the thread itself reads what it writes into the ring, and a row needs no barrier.
"""
# Without postponed annotations: those of macros are their arguments' types to TileLang.
# mypy: disable-error-code="untyped-decorator"

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.compressor import LATENT, SCORE
from thalweg.kernels.sm90.library import tilelang
from thalweg.kernels.sm90.tensors import aligned_rows, check_device

THREADS = 128
QUAD = 4
"""Channels of a thread."""


@functools.cache
def pool_macros() -> SimpleNamespace:
    """The macros. group: float32 [2, ratio, 4], scores and latents of four channels."""
    T: Any = tilelang().language

    @T.macro
    def pool_group(group: Any, ratio: int, pooled: Any) -> None:
        """Softmax of the scores and weighted sum of the latents, in token order, for each channel."""
        for i in T.unroll(QUAD):
            largest, total, weight = T.alloc_var("float32"), T.alloc_var("float32"), T.alloc_var("float32")
            largest = group[SCORE, 0, i]
            for token in T.unroll(1, ratio):
                largest = T.max(largest, group[SCORE, token, i])
            for token in T.unroll(ratio):
                group[SCORE, token, i] = T.exp(group[SCORE, token, i] - largest)
            total = group[SCORE, 0, i]
            for token in T.unroll(1, ratio):
                total = T.ieee_add(total, group[SCORE, token, i])
            pooled[i] = T.ieee_mul(group[SCORE, 0, i] / total, group[LATENT, 0, i])
            for token in T.unroll(1, ratio):
                weight = T.ieee_mul(group[SCORE, token, i] / total, group[LATENT, token, i])
                pooled[i] = T.ieee_add(pooled[i], weight)

    @T.macro
    def copy_quad(target: Any, target_quad: Any, source: Any, source_quad: Any) -> None:
        for i in T.vectorized(QUAD):
            target[target_quad * QUAD + i] = source[source_quad * QUAD + i]

    @T.macro
    def load_quad(group: Any, part: int, token: Any, source: Any, quad: Any) -> None:
        for i in T.vectorized(QUAD):
            group[part, token, i] = source[quad * QUAD + i]

    return SimpleNamespace(pool_group=pool_group, copy_quad=copy_quad, load_quad=load_quad)


def checked_rows(score: Tensor, latent: Tensor, ring: Tensor, integers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """score and latent with rows equally far apart. Raises ConfigError for what kernels cannot take."""
    for name, tensor in (("score", score), ("latent", latent), ("ring", ring)):
        if tensor.dtype != torch.float32:
            raise ConfigError(f"{name} has dtype {tensor.dtype}; float32 is required")
    check_device(score=score, latent=latent, ring=ring, **integers)
    if score.shape[1] % QUAD or ring.stride(3) != 1 or any(stride % QUAD for stride in ring.stride()[:3]):
        raise ConfigError(
            f"ring is {tuple(ring.shape)} with strides {ring.stride()}; kernels of sm90 need a last stride of 1 and "
            f"multiples of {QUAD} before it"
        )
    if ring.data_ptr() % 16:
        raise ConfigError(f"ring begins at address {ring.data_ptr():#x}; a multiple of 16 is needed")
    score, latent = aligned_rows(score, QUAD), aligned_rows(latent, QUAD)
    if score.stride(0) != latent.stride(0):
        score, latent = score.contiguous(), latent.contiguous()
    return score, latent


def ring_quads(ring: Tensor) -> tuple[int, int, int]:
    """How far slots, lines and parts of a ring are apart, in quads."""
    slot, line, part = (stride // QUAD for stride in ring.stride()[:3])
    return slot, line, part
