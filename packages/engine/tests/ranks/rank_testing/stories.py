"""Who asks what when, on each rank of a group."""

from __future__ import annotations

import random
from typing import NamedTuple


class Arrival(NamedTuple):
    """A request that comes before a step."""

    step: int
    prompt_length: int
    max_tokens: int

    def name(self, rank: int, index: int) -> str:
        return f"rank {rank} request {index}"


Story = list[list[Arrival]]
"""Per rank, in order of arrival."""


def uneven(size: int) -> Story:
    """Every rank has twice the requests of the one after it; the last rank has none."""
    generator = random.Random(size)

    def some(count: int) -> list[Arrival]:
        steps = sorted(generator.randrange(40) for _ in range(count))
        return [Arrival(step, generator.randrange(1, 50), generator.randrange(1, 12)) for step in steps]

    return [some(3 << (size - 2 - rank)) if rank < size - 1 else [] for rank in range(size)]


def late_prompt(size: int, step: int) -> Story:
    """The first rank decodes all the time, one more prompt comes to the last rank; the others idle."""
    return [[Arrival(0, 10, 130)], *([] for _ in range(size - 2)), [Arrival(step, 20, 3)]]


def long_prompt(size: int, num_tokens: int) -> Story:
    """As `late_prompt`, but the prompt takes many chunks."""
    return [[Arrival(0, 10, 150)], *([] for _ in range(size - 2)), [Arrival(12, num_tokens, 3)]]
