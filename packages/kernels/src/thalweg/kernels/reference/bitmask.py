"""Restricting what may be drawn by a bitmask over the vocabulary.

Letters: T rows, V vocabulary, M masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape

WORD_BITS = 32


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Set the logits of tokens that are not allowed to -inf, in place.

    logits: float [T, V]. bitmask: int32 [M, words]; bit i % 32 of word i // 32 is 1 where token i is allowed; tokens
    beyond the last word are. rows: int [M], the row of logits that each mask is for, all different, negative = none.
    """
    num_rows, vocabulary = logits.shape
    check_shape("bitmask", bitmask, ("M", "words"))
    check_shape("rows", rows, (bitmask.shape[0],))
    if bitmask.dtype != torch.int32:
        raise ConfigError(f"bitmask has dtype {bitmask.dtype}; int32 is required")
    if bitmask.shape[0] == 0:
        return
    # Which mask each row of logits takes; masks for nobody go to a row behind the last one.
    mask_rows = torch.full((num_rows + 1,), -1, dtype=torch.int64, device=logits.device)
    mask_rows[torch.where(rows < 0, num_rows, rows).long()] = torch.arange(rows.shape[0], device=rows.device)
    mask_rows = mask_rows[:num_rows]
    bits = torch.arange(WORD_BITS, dtype=torch.int32, device=bitmask.device)
    is_banned = ((bitmask[:, :, None] >> bits) & 1 == 0).flatten(1)[:, :vocabulary]
    masked = logits[:, : is_banned.shape[1]]
    masked.masked_fill_(is_banned[mask_rows.clamp(min=0)] & (mask_rows >= 0)[:, None], -torch.inf)


OPS: dict[str, Callable[..., Any]] = {"apply_token_bitmask": apply_token_bitmask}
