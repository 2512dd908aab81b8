"""What a request lets be drawn: temperature, then top-p, top-k and min-p; or the K largest logits.

Letters: n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_count, check_floats, check_integers
from thalweg.kernels.reference.prefix import Filters, find_prefix
from thalweg.kernels.reference.survivors import find_survivors
from thalweg.kernels.reference.vocabulary_rows import (
    first_places,
    in_pieces,
    keep_first,
    largest_values,
    log_softmax,
    rows_per_piece,
)

GREEDY_BELOW = 1e-5


def is_greedy(temperature: Tensor) -> Tensor:
    """Rows bool [n] that take the argmax: temperature [n] below 1e-5."""
    return temperature.float() < GREEDY_BELOW


def filter_mask(logits: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Which tokens survive top-p, top-k and min-p, bool [n, V].

    logits [n, V] after temperature; top_p float [n], 1 = off; top_k int [n], below 1 = off; min_p float [n], 0 = off.
    Tokens are ordered by logit, the lower id first among equals. top-p keeps a token whose predecessors' mass is at
    most top_p (the first always); top-k keeps the first top_k; min-p keeps those at least min_p times as probable as
    the first. All are prefixes, so the shortest wins. Masses are rounded to multiples of 2^-52 of V times that of the
    first, V taken as the next power of two. Values are not checked.
    """
    check_filters(logits, None, top_p, top_k, min_p)
    return in_pieces(_filter_mask, logits, top_p, top_k, min_p)


def _filter_mask(logits: Tensor, *filters: Tensor) -> Tensor:
    chosen = Filters(*filters)
    prefix = find_prefix(logits, chosen)
    return keep_first(logits, prefix.last, prefix.count) | ~chosen.active(logits.shape[1])[:, None]


def tempering(
    temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(float32 [n] that logits are multiplied by, and the three filters): those of greedy rows are off."""
    greedy = is_greedy(temperature)
    scale = torch.reciprocal(torch.where(greedy, GREEDY_BELOW, temperature.float()))
    return scale, torch.where(greedy, 1.0, top_p), torch.where(greedy, -1, top_k), torch.where(greedy, 0.0, min_p)


def temper(logits: Tensor, scale: Tensor) -> Tensor:
    """logits [n, V] times scale float32 [n], in float32.

    Where that would leave the range of float32, the row is first shifted so that its largest logit is 0, which changes
    no probability.
    """
    values, factor = logits.float(), scale.unsqueeze(-1)
    largest = values.amax(-1, keepdim=True)
    is_too_large = torch.isfinite(largest) & ~torch.isfinite(largest * factor)
    if logits.device.type == "cpu" and not bool(is_too_large.any()):
        return values * factor
    return (values - torch.where(is_too_large, largest, 0.0)) * factor


def filtered_logprobs(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Log-probabilities float32 [n, V] that a draw uses: temperature, then the filters of `filter_mask`, renormalised.

    logits float32 [n, V]; temperature, top_p, min_p float [n]; top_k int [n]. Filtered tokens are -inf. A row whose
    temperature is below 1e-5 is greedy: it is evaluated at 1e-5 and its filters are off.
    """
    check_filters(logits, temperature, top_p, top_k, min_p)
    return in_pieces(_filtered, logits, *tempering(temperature, top_p, top_k, min_p))


def _filtered(logits: Tensor, scale: Tensor, *filters: Tensor) -> Tensor:
    tempered, chosen = temper(logits, scale), Filters(*filters)
    return listed_logprobs(tempered, chosen) if logits.device.type == "cpu" else sorted_logprobs(tempered, chosen)


def sorted_logprobs(tempered: Tensor, filters: Filters) -> Tensor:
    """Filtered log-probabilities float32 [n, V] of logits after temperature; reads nothing back from a device."""
    prefix = find_prefix(tempered, filters)
    is_kept = keep_first(tempered, prefix.last, prefix.count)
    filtered = (tempered.double() - prefix.log_total).float().masked_fill_(~is_kept, -torch.inf)
    return torch.where(filters.active(tempered.shape[1])[:, None], filtered, log_softmax(tempered))


def listed_logprobs(tempered: Tensor, filters: Filters) -> Tensor:
    """The same on the CPU, where filtered rows cost little but the making of the result."""
    rows = torch.nonzero(filters.active(tempered.shape[1])).squeeze(1)
    if rows.numel() == 0:
        return log_softmax(tempered)
    if rows.numel() == tempered.shape[0]:
        return find_survivors(tempered, filters).dense()
    result = log_softmax(tempered)
    return result.index_copy_(0, rows, find_survivors(tempered[rows], filters.of(rows)).dense())


def keep_largest(logits: Tensor, count: int) -> None:
    """Set all but the `count` largest of each row of logits float [n, V] to -inf, in place.

    The lower id stays among equals; a count of V or more changes nothing. Raises ConfigError for a count below 1.
    """
    check_floats("logits", logits, ("n", "V"))
    check_count("count", count, 1)
    num_rows, vocabulary = logits.shape
    if count >= vocabulary:
        return
    on_cpu = logits.device.type == "cpu"
    size = rows_per_piece(vocabulary) if on_cpu else num_rows
    for start in range(0, num_rows, max(1, size)):
        rows = logits[start : start + size]
        last = largest_values(rows, count)[:, -1:]
        if on_cpu:
            places, _ = first_places(rows, last, torch.full_like(last, count, dtype=torch.int64))
            cells = places // vocabulary, places % vocabulary
            kept = rows[cells]
            rows.fill_(-torch.inf).index_put_(cells, kept)
        else:
            rows.masked_fill_(~keep_first(rows, last, count), -torch.inf)


def check_filters(logits: Tensor, temperature: Tensor | None, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> None:
    """Raise ConfigError unless logits are rows of at least one token, and each row has its parameters."""
    check_floats("logits", logits, ("n", "V"))
    rows, vocabulary = logits.shape
    if vocabulary == 0:
        raise ConfigError("logits has no columns; at least one token is required")
    if temperature is not None:
        check_floats("temperature", temperature, (rows,))
    check_floats("top_p", top_p, (rows,))
    check_integers("top_k", top_k, (rows,))
    check_floats("min_p", min_p, (rows,))


OPS: dict[str, Callable[..., Any]] = {
    "filter_mask": filter_mask,
    "filtered_logprobs": filtered_logprobs,
    "keep_largest": keep_largest,
}
