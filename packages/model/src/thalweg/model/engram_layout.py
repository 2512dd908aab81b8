"""Where the Engram tables put their buckets: primes, row offsets, table sizes and hash multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
_INT64_MAX = 2**63 - 1


def is_prime(n: int) -> bool:
    """Whether n is prime; exact below 3.3e24 (Miller-Rabin with the first twelve primes as witnesses)."""
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for a in _WITNESSES:
        x = pow(a, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def bucket_primes(
    num_layers: int, max_ngram_size: int, num_heads: int, vocab_size: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Bucket counts [layer][n-gram size - 2][head]: distinct primes, searched upwards from `vocab_size`.

    One set of used primes serves all layers; each n-gram size of each layer restarts the search.
    """
    used: set[int] = set()
    layers = []
    for _ in range(num_layers):
        sizes = []
        for _ in range(2, max_ngram_size + 1):
            heads: list[int] = []
            candidate = vocab_size - 1
            while len(heads) < num_heads:
                candidate += 1
                if candidate not in used and is_prime(candidate):
                    used.add(candidate)
                    heads.append(candidate)
            sizes.append(tuple(heads))
        layers.append(tuple(sizes))
    return tuple(layers)


@dataclass(frozen=True, slots=True)
class EngramLayout:
    """The buckets of every Engram layer, in the order of `engram_layer_ids`."""

    primes: tuple[tuple[tuple[int, ...], ...], ...]
    """Indexed by layer, n-gram size - 2, head."""

    @classmethod
    def compute(cls, num_layers: int, max_ngram_size: int, num_heads: int, vocab_size: int) -> EngramLayout:
        """Search the primes; 48 of them near 16 million take a few milliseconds."""
        return cls(bucket_primes(num_layers, max_ngram_size, num_heads, vocab_size))

    @property
    def num_rows(self) -> tuple[int, ...]:
        """Table rows of each layer."""
        return tuple(sum(sum(heads) for heads in layer) for layer in self.primes)

    def flat_primes(self, index: int) -> NDArray[np.int64]:
        """int64 [(N-1)*heads] bucket counts of one layer, n-gram size major, head minor."""
        return np.array([p for heads in self.primes[index] for p in heads], dtype=np.int64)

    def offsets(self, index: int) -> NDArray[np.int64]:
        """int64 [(N-1)*heads] first table row of each bucket group of one layer."""
        flat = [p for heads in self.primes[index] for p in heads]
        return np.array([0, *accumulate(flat)][:-1], dtype=np.int64)


def hash_multipliers(layer: int, max_ngram_size: int, compressed_vocab_size: int) -> NDArray[np.int64]:
    """int64 [N] odd multipliers of one backbone layer; products with compressed ids stay below 2^63."""
    if compressed_vocab_size < 1:
        raise ConfigError(f"engram_compressed_vocab_size is {compressed_vocab_size}; it must be at least 1")
    bound = max(1, (_INT64_MAX // compressed_vocab_size) // 2)
    draws = np.random.default_rng(10007 * layer).integers(0, bound, size=max_ngram_size, dtype=np.int64)
    return draws * 2 + 1


def check_num_rows(declared: Sequence[int], layout: EngramLayout) -> None:
    """Raise ConfigError unless the declared table sizes are the sums of the primes."""
    if tuple(declared) != layout.num_rows:
        raise ConfigError(
            f"config.json: text_config.engram_num_embeddings is {list(declared)}; "
            f"the bucket primes of this config sum to {list(layout.num_rows)}"
        )
