"""The filters as sentences say them, one row at a time in plain Python."""

from __future__ import annotations

import math


def kept_ids(logits: list[float], top_p: float, top_k: int, min_p: float) -> list[int]:
    """Ids of the tokens that survive, the most probable first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    shares = [math.exp(logits[token] - logits[order[0]]) for token in order]
    kept = []
    for rank, token in enumerate(order):
        passes_p = rank == 0 or top_p >= 1 or math.fsum(shares[:rank]) <= top_p * math.fsum(shares)
        passes_k = top_k < 0 or rank < top_k
        if passes_p and passes_k and shares[rank] >= min_p:
            kept.append(token)
    return kept


def probabilities(logits: list[float], top_p: float, top_k: int, min_p: float) -> list[float]:
    """What each token is drawn with; 0 for those that do not survive."""
    kept = kept_ids(logits, top_p, top_k, min_p)
    weights = {token: math.exp(logits[token] - logits[kept[0]]) for token in kept}
    total = math.fsum(weights.values())
    return [weights.get(token, 0.0) / total for token in range(len(logits))]


def chi_square(observed: list[int], probability: list[float]) -> tuple[float, float]:
    """The statistic, and the limit that it passes in one case of 1,000 (by Wilson and Hilferty).

    Categories without probability must be empty, and do not count.
    """
    total = sum(observed)
    pairs = [(seen, total * share) for seen, share in zip(observed, probability, strict=True) if share > 0]
    assert sum(seen for seen, _ in pairs) == total, "something of probability 0 was drawn"
    degrees = len(pairs) - 1
    spread = 2 / (9 * degrees)
    limit = degrees * (1 - spread + 3.0902 * math.sqrt(spread)) ** 3
    return sum((seen - expected) ** 2 / expected for seen, expected in pairs), limit
