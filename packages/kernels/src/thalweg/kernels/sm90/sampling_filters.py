"""Ops on rows of logits, on Hopper: filters, log-probabilities, the largest entries, and draws of tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_count
from thalweg.kernels.sm90 import sampling_rows as rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.sampling_random import checked_streams
from thalweg.kernels.sm90.sampling_rows import check_logits, row_parameters, run_rows
from thalweg.kernels.sm90.tensors import check_device

MOST_LISTED = 1024
"""Entries that `top_logprobs` lists by itself."""


def argmax_lowest(logits: Tensor) -> Tensor:
    """As the reference, of float32 rows. Rows may lie apart; a row itself may not."""
    check_logits(logits)
    out = torch.empty(logits.shape[0], dtype=torch.int32, device=logits.device)
    run_rows(rows.ARGMAX, logits, out)
    return out


def log_softmax(logits: Tensor) -> Tensor:
    """As the reference, of float32 rows. Rows may lie apart; a row itself may not."""
    check_logits(logits)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    run_rows(rows.PLAIN_LOGPROBS, logits, out)
    return out


def filter_mask(logits: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """As the reference, of float32 rows. Rows may lie apart; a row itself may not."""
    check_logits(logits)
    out = torch.empty(logits.shape, dtype=torch.bool, device=logits.device)
    run_rows(rows.MASK, logits, out.view(torch.uint8), row_parameters(logits, None, top_p, top_k, min_p))
    return out


def filtered_logprobs(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """As the reference, of float32 rows. Rows may lie apart; a row itself may not."""
    check_logits(logits)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    run_rows(rows.LOGPROBS, logits, out, row_parameters(logits, temperature, top_p, top_k, min_p))
    return out


def keep_largest(logits: Tensor, count: int) -> None:
    """As the reference, of float32 rows. Rows may lie apart; a row itself may not."""
    check_count("count", count, 1)
    check_logits(logits)
    if count < logits.shape[1]:
        run_rows(rows.KEPT, logits, logits, count=count)


def top_logprobs(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As the reference, of float32 rows without NaN. More than MOST_LISTED entries are sorted by torch."""
    check_logits(logprobs, "logprobs")
    num_rows, vocabulary = logprobs.shape
    if not isinstance(count, int) or not 0 <= count <= vocabulary:
        raise ConfigError(f"count is {count}; 0 to {vocabulary}, the size of the vocabulary, are accepted")
    if count > MOST_LISTED:
        ordered = torch.sort(logprobs, dim=-1, descending=True, stable=True)
        return ordered.values[:, :count], ordered.indices[:, :count].int()
    values = torch.empty(num_rows, count, dtype=torch.float32, device=logprobs.device)
    ids = torch.empty(num_rows, count, dtype=torch.int32, device=logprobs.device)
    if count > 0:
        run_rows(rows.LARGEST, logprobs, values, ids=ids, count=count)
    return values, ids


def _draw(
    make: rows.Make,
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    check_logits(logits)
    streams = checked_streams(logits.shape[0], seeds, positions)
    check_device(logits=logits, seeds=seeds, positions=positions)
    out = torch.empty(logits.shape[0], dtype=torch.int32, device=logits.device)
    run_rows(make, logits, out, row_parameters(logits, temperature, top_p, top_k, min_p), streams)
    return out


def sample_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """As the reference, of float32 rows. Rows may lie apart; a row itself may not."""
    return _draw(rows.FRESH, logits, temperature, top_p, top_k, min_p, seeds, positions)


def coupled_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """As the reference, of float32 rows. Rows may lie apart; a row itself may not."""
    return _draw(rows.COUPLED, logits, temperature, top_p, top_k, min_p, seeds, positions)


IMPLEMENTATIONS = tuple(
    implementation(function)
    for function in (
        argmax_lowest,
        log_softmax,
        filter_mask,
        filtered_logprobs,
        keep_largest,
        top_logprobs,
        sample_tokens,
        coupled_tokens,
    )
)


def _example(make: rows.Make) -> Callable[[str], Any]:
    return functools.partial(_of_the_release, make)


def _of_the_release(make: rows.Make, architecture: str) -> Any:
    return rows.rows_kernel(make, rows.MOST_BLOCKS, rows.BLOCK_COLUMNS, architecture=architecture)


COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "filtered_logprobs": _example(rows.LOGPROBS),
    "log_softmax": _example(rows.PLAIN_LOGPROBS),
    "filter_mask": _example(rows.MASK),
    "keep_largest": _example(rows.KEPT),
    "top_logprobs": _example(rows.LARGEST),
    "argmax_lowest": _example(rows.ARGMAX),
    "sample_tokens": _example(rows.FRESH),
    "coupled_tokens": _example(rows.COUPLED),
}
"""Kernels at the dimensions of the release, by name; each takes an architecture."""
