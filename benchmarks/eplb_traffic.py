"""Seeded histories of expert loads: what planners of placements are compared on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

NUM_TOPICS = 8
Rates = NDArray[np.float64]
"""[layers, experts] the part of a step's tokens that each expert receives, 1 in all per layer."""


def history(kind: str, seed: int, shape: tuple[int, int, int], tokens: int, skew: float) -> NDArray[np.int32]:
    """[steps, layers, experts] tokens, `tokens` in each step and layer.

    kind: `stationary`; `walk`, experts drift independently; `topics`, half of the traffic is a mix of eight topics that
        all layers share, so that experts move together; `shift`, at half time 30 % of the traffic turns to new experts.
    skew: experts are loaded in proportion to rank^-skew, in an order of its own in each layer.
    """
    num_steps, num_layers, num_experts = shape
    rng = np.random.default_rng(seed)
    base = zipf(rng, num_layers, num_experts, skew)
    rates = {"stationary": stationary, "walk": walk, "topics": topics, "shift": shift}[kind]
    steps = list(rates(rng, base, num_steps, skew))
    return np.stack([rng.multinomial(tokens, step).astype(np.int32) for step in steps])


def zipf(rng: np.random.Generator, num_layers: int, num_experts: int, skew: float) -> Rates:
    falling = (1.0 + np.arange(num_experts)) ** -skew
    return np.stack([rng.permutation(falling / falling.sum()) for _ in range(num_layers)])


def stationary(rng: np.random.Generator, base: Rates, num_steps: int, skew: float) -> Iterator[Rates]:
    return (base for _ in range(num_steps))


def walk(rng: np.random.Generator, base: Rates, num_steps: int, skew: float) -> Iterator[Rates]:
    """Each expert's logarithm follows an Ornstein-Uhlenbeck process: deviation 0.5, correlation 0.98 between steps."""
    noise = 0.5 * rng.standard_normal(base.shape)
    for _ in range(num_steps):
        rates = base * np.exp(noise)
        yield rates / rates.sum(axis=1, keepdims=True)
        noise = 0.98 * noise + np.sqrt(1 - 0.98**2) * 0.5 * rng.standard_normal(base.shape)


def topics(rng: np.random.Generator, base: Rates, num_steps: int, skew: float) -> Iterator[Rates]:
    """The topics' weights are a softmax of Ornstein-Uhlenbeck processes: deviation 1.5, correlation 0.9."""
    of_topic = np.stack([zipf(rng, base.shape[0], base.shape[1], skew) for _ in range(NUM_TOPICS)])
    mood = 1.5 * rng.standard_normal(NUM_TOPICS)
    for _ in range(num_steps):
        weights = np.exp(mood - mood.max())
        rates: Rates = 0.5 * base + 0.5 * np.tensordot(weights / weights.sum(), of_topic, 1)
        yield rates / rates.sum(axis=1, keepdims=True)
        mood = 0.9 * mood + np.sqrt(1 - 0.9**2) * 1.5 * rng.standard_normal(NUM_TOPICS)


def shift(rng: np.random.Generator, base: Rates, num_steps: int, skew: float) -> Iterator[Rates]:
    later = 0.7 * base + 0.3 * zipf(rng, base.shape[0], base.shape[1], skew)
    return (base if step < num_steps // 2 else later for step in range(num_steps))
