"""Restricting what may be drawn by a bitmask over the vocabulary.

Letters: T rows, V vocabulary, M masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape

WORD_BITS = 32
SLAB_ELEMENTS = 1 << 24
"""Logits that a device masks at a time: as many bytes, twice, are the intermediate results."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of a float, the integer of its bits."""


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Set the logits of tokens that are not allowed to -inf, in place.

    logits: float [T, V]. bitmask: int32 [M, words]; bit i % 32 of word i // 32 is 1 where token i is allowed; tokens
    beyond the last word are. rows: int [M], the row of logits that each mask is for, all different, negative = none.
    """
    check_token_bitmask(logits, bitmask, rows)
    if 0 in (*logits.shape, *bitmask.shape):
        return
    (mask_on_host if logits.device.type == "cpu" else mask_on_device)(logits, bitmask, rows)


def check_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Raise ConfigError for shapes and dtypes that `apply_token_bitmask` does not take."""
    check_shape("logits", logits, ("T", "V"))
    check_shape("bitmask", bitmask, ("M", "words"))
    check_shape("rows", rows, (bitmask.shape[0],))
    if not logits.dtype.is_floating_point or logits.element_size() not in INTEGERS:
        raise ConfigError(f"logits has dtype {logits.dtype}; a float of 16, 32 or 64 bits is required")
    if bitmask.dtype != torch.int32:
        raise ConfigError(f"bitmask has dtype {bitmask.dtype}; int32 is required")
    if rows.dtype.is_floating_point or rows.dtype == torch.bool:
        raise ConfigError(f"rows has dtype {rows.dtype}; integers are required")


def mask_on_host(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Row by row, (x - inf) * allowed + inf on the bits of x and of minus infinity.

    Integers wrap, so that is x or minus infinity, exactly, whatever x is. A choice instead would be a branch, which the
    processor guesses wrong wherever allowed tokens lie among others: up to ten times slower.
    """
    words = bitmask.contiguous().numpy().view(np.uint8)
    integer = INTEGERS[logits.element_size()]
    infinity = torch.tensor(-torch.inf, dtype=logits.dtype).view(integer).item()
    values = logits.detach().view(integer).numpy()[:, : WORD_BITS * bitmask.shape[1]]
    for mask, row in zip(words, rows.tolist(), strict=True):
        if row >= 0:
            bits = values[row]
            bits -= infinity
            bits *= np.unpackbits(mask, count=bits.shape[0], bitorder="little")
            bits += infinity


def mask_on_device(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """All rows, those without a mask by words that are all ones: what is computed depends on shapes alone."""
    num_rows, num_masks = logits.shape[0], rows.shape[0]
    # The mask of each row of logits; masks for nobody go to a row behind the last one.
    masks = torch.full((num_rows + 1,), -1, dtype=torch.int64, device=logits.device)
    masks[torch.where(rows < 0, num_rows, rows).long()] = torch.arange(num_masks, device=rows.device)
    masks = masks[:num_rows, None]
    words = torch.where(masks < 0, -1, bitmask[masks.squeeze(1).clamp(min=0)]).view(torch.uint8)
    powers = torch.bitwise_left_shift(1, torch.arange(8, device=logits.device)).to(torch.uint8)
    columns = logits[:, : 8 * words.shape[1]]
    slab = max(1, SLAB_ELEMENTS // columns.shape[1])
    for some, bits in zip(torch.split(columns, slab), torch.split(words, slab), strict=True):
        is_banned = ((bits[:, :, None] & powers) == 0).flatten(1)
        some.masked_fill_(is_banned[:, : some.shape[1]], -torch.inf)


OPS: dict[str, Callable[..., Any]] = {"apply_token_bitmask": apply_token_bitmask}
