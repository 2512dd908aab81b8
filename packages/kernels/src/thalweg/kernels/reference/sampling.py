"""Counter-based random numbers, the filters of a request, and the draw of a token.

A row's result depends on that row alone. Seeds are 64-bit patterns: uint64 or int64 tensors, taken modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape, sum_last

FRESH, RESIDUAL, COIN = 0, 1, 2
GREEDY_BELOW = 1e-5
PIECE_ELEMENTS = 1 << 17
"""Tokens that `in_pieces` takes at a time."""


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    return value - 2**64 if value >= 2**63 else value


GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(z: Tensor, count: int) -> Tensor:
    """Logical shift of int64 bit patterns."""
    return (z >> count).bitwise_and_((1 << (64 - count)) - 1)


def hash_input(seeds: Tensor, positions: Tensor, case: int) -> Tensor:
    """64-bit input of the hash, as int64, of seeds [n] and positions int [n] in one of the three namespaces."""
    if case not in (FRESH, RESIDUAL, COIN):
        raise ConfigError(f"case is {case}; 0 (fresh), 1 (residual) and 2 (acceptance coin) are accepted")
    if seeds.dtype not in (torch.int64, torch.uint64):
        raise ConfigError(f"seeds have dtype {seeds.dtype}; uint64 or int64 is required")
    check_shape("positions", positions, tuple(seeds.shape))
    bits = seeds.view(torch.int64)
    state = (3 * positions.long() + case) * GAMMA
    return bits ^ state if case == COIN else bits + (state ^ (state << 13))


def splitmix_hash(x: Tensor) -> Tensor:
    """SplitMix64's output for the int64 bit patterns x, as int64."""
    z = x + GAMMA
    z.bitwise_xor_(_shift_right(z, 30)).mul_(_MIX_1)
    z.bitwise_xor_(_shift_right(z, 27)).mul_(_MIX_2)
    return z.bitwise_xor_(_shift_right(z, 31))


def unit_interval(z: Tensor) -> Tensor:
    """float64 numbers in [0, 1) from the upper 53 bits of int64 bit patterns."""
    return _shift_right(z, 11).double().mul_(2.0**-53)


def uniform(seeds: Tensor, positions: Tensor, case: int = FRESH) -> Tensor:
    """float64 numbers in [0, 1), a pure function of (seed, position, case)."""
    return unit_interval(splitmix_hash(hash_input(seeds, positions, case)))


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Token ids int32 [n] drawn from weights float32 [n, V] of any total with uniform numbers u float64 [n].

    The first id whose running float64 sum exceeds u times the total; if rounding leaves none, the last id of positive
    weight. -1 where the total is zero or not finite: the caller decides what that means.
    """
    n, vocabulary = weights.shape
    check_shape("u", u, (n,))
    if u.dtype != torch.float64:
        raise ConfigError(f"u has dtype {u.dtype}; float64 is required")
    if vocabulary == 0:
        raise ConfigError("weights have no columns; at least one token is required")
    return in_pieces(_draw, weights, u)


def _draw(weights: Tensor, u: Tensor) -> Tensor:
    vocabulary = weights.shape[1]
    sums = torch.cumsum(weights.double(), -1)
    total = sums[:, -1]
    first = torch.searchsorted(sums, (u * total).unsqueeze(-1), right=True).squeeze(-1)
    last_positive = vocabulary - 1 - (weights.flip(-1) > 0).to(torch.int8).argmax(-1)
    token = torch.where(first < vocabulary, first, last_positive)
    return torch.where((total > 0) & torch.isfinite(total), token, -1).int()


def argmax_lowest(logits: Tensor) -> Tensor:
    """Id int32 [n] of the largest of logits [n, V], the lowest among equals; -1 where the largest is not finite."""
    best = logits.amax(-1, keepdim=True)
    token = (logits == best).to(torch.int8).argmax(-1)
    return torch.where(torch.isfinite(best.squeeze(-1)), token, -1).int()


def in_pieces(function: Callable[..., Tensor], rows: Tensor, *others: Tensor) -> Tensor:
    """function(rows, *others) of rows [n, V] and others [n], some rows at a time on the CPU.

    It must treat every row by itself. Its intermediate results then stay in the processor's cache, and in memory that
    is at hand: large ones cost more in new pages than in arithmetic.
    """
    count = max(1, PIECE_ELEMENTS // max(1, rows.shape[1]))
    if rows.device.type != "cpu" or rows.shape[0] <= count:
        return function(rows, *others)
    pieces = [slice(start, start + count) for start in range(0, rows.shape[0], count)]
    return torch.cat([function(rows[piece], *(other[piece] for other in others)) for piece in pieces])


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities float32 [n, V] of logits [n, V], evaluated in float64."""
    value = logits.double()
    value = value - value.amax(-1, keepdim=True)
    return (value - torch.log(sum_last(torch.exp(value))).unsqueeze(-1)).float()


def filter_mask(logits: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Which tokens survive top-p and top-k, bool [n, V].

    logits [n, V] after temperature; top_p float [n], 1 = off; top_k int [n], -1 = off.
    Tokens are ordered by logit, the lower id first among equals. top-p keeps a token whose predecessors' mass is at
    most top_p (the first always); top-k keeps the first top_k. Both are prefixes, so the shorter one wins.
    """
    n, vocabulary = logits.shape
    check_shape("top_p", top_p, (n,))
    check_shape("top_k", top_k, (n,))
    kept = torch.ones(n, vocabulary, dtype=torch.bool, device=logits.device)
    rows = _filtered_rows(top_p, top_k, vocabulary)
    if rows.numel():
        kept[rows] = _survivors(logits[rows], top_p[rows], top_k[rows])[0]
    return kept


def _filtered_rows(top_p: Tensor, top_k: Tensor, vocabulary: int) -> Tensor:
    """Rows int64 [m] of which a filter may drop something."""
    return torch.nonzero((top_p < 1) | ((top_k > 0) & (top_k < vocabulary))).squeeze(-1)


def _survivors(logits: Tensor, top_p: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor]:
    """(survivors bool [n, V], log of the sum of their exponentials float64 [n, 1])."""
    p, k = top_p.double()[:, None], top_k.long()[:, None]
    ordered = _sorted_values(logits)
    largest = ordered[:, :1].double()
    mass = torch.exp(ordered.double() - largest)
    sums = torch.cumsum(mass, -1)
    limit = torch.where(p >= 1, torch.inf, p * sum_last(mass)[:, None])
    count = 1 + torch.searchsorted(sums[:, :-1].contiguous(), limit, right=True)
    count = torch.where(k > 0, torch.minimum(count, k), count)
    # The prefix of the order is everything above its last value, and as many of the equal ones as are left to take.
    last = ordered.gather(1, count - 1)
    survivors = logits >= last
    if bool((survivors.sum(-1, keepdim=True) > count).any()):
        above, equal = logits > last, logits == last
        survivors = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return survivors, largest + torch.log(sums.gather(1, count - 1))


def _sorted_values(logits: Tensor) -> Tensor:
    """[n, V] from the largest to the smallest; numpy sorts much faster than torch on the CPU."""
    if logits.device.type != "cpu":
        return torch.sort(logits, dim=-1, descending=True).values
    return torch.from_numpy(np.sort((-logits).numpy(), axis=-1)).neg_()


def descending(logits: Tensor) -> Tensor:
    """Ids int64 [n, V] from the largest logit to the smallest, lower id first among equals."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return torch.sort(logits, dim=-1, descending=True, stable=True).indices
    # Order-preserving bits of the negated logit above the id: all keys differ, and numpy sorts integers much faster.
    bits = (logits + 0.0).view(torch.int32)
    bits = ~torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (bits.long() << 32) | torch.arange(logits.shape[1])
    return torch.from_numpy(np.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF


def filtered_logprobs(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Log-probabilities float32 [n, V] that a draw uses: temperature, then top-p and top-k, renormalised.

    logits float32 [n, V]; temperature, top_p float [n]; top_k int [n]. Filtered tokens are -inf. A row whose
    temperature is below 1e-5 is greedy: it is evaluated at 1e-5 and its filters are off.
    """
    n = logits.shape[0]
    check_shape("temperature", temperature, (n,))
    if bool((temperature < 0).any()):
        raise ConfigError(f"temperature holds {float(temperature.min())}; it must be at least 0")
    if bool(((top_p <= 0) | (top_p > 1)).any()):
        raise ConfigError(f"top_p holds {top_p.tolist()}; every value must be in (0, 1]")
    if bool(((top_k < 1) & (top_k != -1)).any()):
        raise ConfigError(f"top_k holds {top_k.tolist()}; every value must be -1 or positive")
    greedy = is_greedy(temperature)
    scale = torch.reciprocal(torch.where(greedy, GREEDY_BELOW, temperature.float()))
    return in_pieces(_filtered, logits, scale, torch.where(greedy, 1.0, top_p), torch.where(greedy, -1, top_k))


def _filtered(logits: Tensor, scale: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    tempered = logits.float() * scale.unsqueeze(-1)
    rows = _filtered_rows(top_p, top_k, logits.shape[1])
    if rows.numel() == 0:
        return log_softmax(tempered)
    chosen = tempered[rows]
    survivors, log_total = _survivors(chosen, top_p[rows], top_k[rows])
    filtered = (chosen.double() - log_total).float().masked_fill_(~survivors, -torch.inf)
    return filtered if rows.numel() == logits.shape[0] else log_softmax(tempered).index_copy_(0, rows, filtered)


def is_greedy(temperature: Tensor) -> Tensor:
    """Rows bool [n] that take the argmax: temperature [n] below 1e-5."""
    return temperature.float() < GREEDY_BELOW


def sample_tokens(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """Fresh token ids int32 [n]: the argmax on greedy rows, elsewhere a draw from filtered_logprobs.

    seeds uint64 or int64 [n], positions int [n]. -1 where a row has no finite largest logit.
    """
    logprobs = filtered_logprobs(logits, temperature, top_p, top_k)
    best = argmax_lowest(logits)
    drawn = draw(torch.exp(logprobs), uniform(seeds, positions, FRESH))
    return torch.where(is_greedy(temperature) | (best < 0), best, drawn)


OPS: dict[str, Callable[..., Any]] = {
    "splitmix_hash": splitmix_hash,
    "uniform": uniform,
    "draw": draw,
    "argmax_lowest": argmax_lowest,
    "log_softmax": log_softmax,
    "filter_mask": filter_mask,
    "filtered_logprobs": filtered_logprobs,
    "sample_tokens": sample_tokens,
}
