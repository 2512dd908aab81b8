"""The exact law of what a request says, and the chi-square test of a sample against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from drafts_testing.tables import Tables
from thalweg.interfaces import SamplingParams

SMALL_CELL = 5.0


def distributions(logits: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """[K, V] what a token is drawn from in each row of logits [K, V], written out a second time, row by row."""
    result = np.zeros(logits.shape)
    for row, values in zip(result, logits, strict=True):
        weights = np.exp((values - values.max()) / params.temperature)
        weights /= weights.sum()
        order = sorted(range(weights.size), key=lambda token: (-weights[token], token))
        mass, kept = 0.0, []
        for token in order:
            if mass > params.top_p or len(kept) == params.top_k:
                break
            kept.append(token)
            mass += weights[token]
        row[kept] = weights[kept] / weights[kept].sum()
    return result


def joint_law(
    tables: Tables, params: SamplingParams, prompt: Sequence[int], num_tokens: int, eos: int
) -> NDArray[np.float64]:
    """[V ** num_tokens] probabilities of the first tokens after a prompt, the first token being the slowest digit.

    A text that has ended goes on with the end token for ever.
    """
    logits = tables.logits.double().numpy()
    without_end = logits.copy()
    without_end[:, eos] = -np.inf
    rows, early_rows = distributions(logits, params), distributions(without_end, params)
    states = torch.full((1,), tables.start, dtype=torch.int64)
    for token in prompt:
        states = tables.advance(states, torch.tensor([token]))
    law, has_ended = np.ones(1), np.zeros(1, np.bool_)
    every_token = torch.arange(tables.vocab_size)
    for index in range(num_tokens):
        chances = (early_rows if index < params.min_tokens else rows)[tables.rows(states).numpy()]
        chances[has_ended] = every_token.numpy() == eos
        law = (law[:, None] * chances).reshape(-1)
        is_end = (every_token.numpy() == eos) & (not params.ignore_eos)
        has_ended = (has_ended[:, None] | is_end).reshape(-1)
        states = tables.advance(states.repeat_interleave(tables.vocab_size), every_token.repeat(states.numel()))
    return law


def count_texts(texts: Sequence[Sequence[int]], vocab_size: int, num_tokens: int, eos: int) -> NDArray[np.int64]:
    """[V ** num_tokens] how often each text was said, numbered as in `joint_law`."""
    tokens = np.full((len(texts), num_tokens), eos, np.int64)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text[:num_tokens]
    digits = vocab_size ** np.arange(num_tokens - 1, -1, -1)
    return np.bincount(tokens @ digits, minlength=vocab_size**num_tokens)


class ChiSquare:
    """Pearson's test of counts against a law. Cells that expect less than `SMALL_CELL` are one cell.

    p_value is 0 where something was drawn that cannot be.
    """

    def __init__(self, counts: NDArray[np.int64], law: NDArray[np.float64]) -> None:
        expected = counts.sum() * law / law.sum()
        is_small = expected < SMALL_CELL
        seen, wanted = counts[~is_small], expected[~is_small]
        if expected[is_small].sum() > 0:
            seen = np.append(seen, counts[is_small].sum())
            wanted = np.append(wanted, expected[is_small].sum())
        self.is_possible = not counts[law == 0].any()
        self.statistic = float(((seen - wanted) ** 2 / wanted).sum())
        self.degrees = seen.size - 1
        self.p_value = upper_gamma(self.degrees / 2, self.statistic / 2) if self.is_possible else 0.0

    def __str__(self) -> str:
        impossible = "" if self.is_possible else ", impossible texts among them"
        return f"chi-square {self.statistic:.0f} for {self.degrees}, p = {self.p_value:.3g}{impossible}"


def upper_gamma(a: float, x: float) -> float:
    """Regularised upper incomplete gamma function, by its series below the mean and its continued fraction above."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        index = a
        while term > 1e-16 * total:
            index += 1
            term *= x / index
            total += term
        return max(0.0, 1 - scale * total)
    # Lentz's method.
    b = x + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for index in range(1, 100_000):
        numerator = -index * (index - a)
        b += 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * fraction
