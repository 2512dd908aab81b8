"""What a request lets be drawn: temperature, top-p, top-k and min-p, and the K largest logits.

All of them keep a prefix of one order: by logit, the lower id first among equals. Letters: n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.reference.vocabulary_rows import in_pieces, log_softmax, sorted_values

GREEDY_BELOW = 1e-5
MASS_UNIT = 2.0**44
"""Mass of a row's largest token. Masses are whole numbers, so their sums do not depend on an order; 2^18 of them fit
into int64."""


def is_greedy(temperature: Tensor) -> Tensor:
    """Rows bool [n] that take the argmax: temperature [n] below 1e-5."""
    return temperature.float() < GREEDY_BELOW


def filter_mask(logits: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Which tokens survive top-p, top-k and min-p, bool [n, V].

    logits [n, V] after temperature; top_p float [n], 1 = off; top_k int [n], -1 = off; min_p float [n], 0 = off.
    Tokens are ordered by logit, the lower id first among equals. top-p keeps a token whose predecessors' mass is at
    most top_p (the first always); top-k keeps the first top_k; min-p keeps those at least min_p times as probable as
    the first. All are prefixes, so the shortest wins. Masses are taken in units of 2^-44 of the largest.
    """
    n = logits.shape[0]
    for name, values in (("top_p", top_p), ("top_k", top_k), ("min_p", min_p)):
        check_shape(name, values, (n,))
    return in_pieces(lambda *given: _survivors(*given)[0], logits, top_p, top_k, min_p)


def _survivors(logits: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> tuple[Tensor, Tensor]:
    """(survivors bool [n, V], log of the sum of their exponentials float64 [n, 1])."""
    vocabulary = logits.shape[1]
    p, k = top_p.double()[:, None], top_k.long()[:, None]
    ordered = sorted_values(logits)
    largest = ordered[:, :1].double()
    probable = torch.exp(ordered.double() - largest)
    sums = torch.cumsum((probable * MASS_UNIT).round_().long(), -1)
    limit = torch.where(p < 1, (p * sums[:, -1:]).long(), torch.iinfo(torch.int64).max)
    count = 1 + torch.searchsorted(sums[:, :-1].contiguous(), limit, right=True)
    count = torch.where(k > 0, torch.minimum(count, k), count)
    count = torch.minimum(count, (probable >= min_p.double()[:, None]).sum(-1, keepdim=True).clamp(1, vocabulary))
    # The prefix of the order is everything above its last value, and as many of the equal ones as are left to take.
    last = ordered.gather(1, count - 1)
    above, equal = logits > last, logits == last
    survivors = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return survivors, largest + torch.log(sums.gather(1, count - 1) / MASS_UNIT)


def filtered_logprobs(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Log-probabilities float32 [n, V] that a draw uses: temperature, then top-p, top-k and min-p, renormalised.

    logits float32 [n, V]; temperature, top_p, min_p float [n]; top_k int [n]. Filtered tokens are -inf. A row whose
    temperature is below 1e-5 is greedy: it is evaluated at 1e-5 and its filters are off.
    """
    n = logits.shape[0]
    for name, values in (("temperature", temperature), ("top_p", top_p), ("top_k", top_k), ("min_p", min_p)):
        check_shape(name, values, (n,))
    greedy = is_greedy(temperature)
    scale = torch.reciprocal(torch.where(greedy, GREEDY_BELOW, temperature.float()))
    filters = torch.where(greedy, 1.0, top_p), torch.where(greedy, -1, top_k), torch.where(greedy, 0.0, min_p)
    return in_pieces(_filtered, logits, scale, *filters)


def _filtered(logits: Tensor, scale: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    tempered = logits.float() * scale.unsqueeze(-1)
    is_filtered = (top_p < 1) | (top_k > 0) | (min_p > 0)
    if logits.device.type == "cpu" and not bool(is_filtered.any()):
        return log_softmax(tempered)
    survivors, log_total = _survivors(tempered, top_p, top_k, min_p)
    filtered = (tempered.double() - log_total).float().masked_fill_(~survivors, -torch.inf)
    return torch.where(is_filtered[:, None], filtered, log_softmax(tempered))


def keep_largest(logits: Tensor, count: int) -> None:
    """Set all but the `count` largest of each row of logits float [n, V] to -inf, in place.

    The lower id stays among equals; a count of V or more changes nothing. Raises ConfigError for a count below 1.
    """
    if count < 1:
        raise ConfigError(f"count is {count}; it must be at least 1")
    if count >= logits.shape[1]:
        return
    last = sorted_values(logits)[:, count - 1 : count]
    above, equal = logits > last, logits == last
    logits.masked_fill_(~(above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))), -torch.inf)


OPS: dict[str, Callable[..., Any]] = {
    "filter_mask": filter_mask,
    "filtered_logprobs": filtered_logprobs,
    "keep_largest": keep_largest,
}
