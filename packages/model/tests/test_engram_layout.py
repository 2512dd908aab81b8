"""Bucket primes, offsets and multipliers, against the constants of the released model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from thalweg.interfaces import ConfigError
from thalweg.model import EngramLayout, hash_multipliers
from thalweg.model.engram_layout import check_num_rows, is_prime

GOLDEN = json.loads((Path(__file__).parent / "golden/engram_layout_real.json").read_text())


def released() -> EngramLayout:
    return EngramLayout.compute(2, 4, 8, 16_000_000)


def test_primes_offsets_and_rows_of_the_released_model_are_reproduced() -> None:
    layout = released()
    for index, layer in enumerate(GOLDEN["layers"]):
        assert [list(heads) for heads in layout.primes[index]] == GOLDEN["primes"][str(layer)]
        assert layout.flat_primes(index).tolist() == [p for heads in GOLDEN["primes"][str(layer)] for p in heads]
        assert layout.offsets(index).tolist() == GOLDEN["offsets"][index]
        assert layout.num_rows[index] == GOLDEN["rows"][str(layer)]
    assert layout.num_rows == (384_006_168, 384_016_682)


def test_multipliers_of_the_released_model_are_reproduced_as_integers() -> None:
    for index, layer in enumerate(GOLDEN["layers"]):
        found = hash_multipliers(layer, 4, GOLDEN["compressed_vocab"])
        assert found.dtype == np.int64
        assert [str(m) for m in found.tolist()] == GOLDEN["multipliers"][index]


def test_small_tables_have_the_rows_their_checkpoints_declare() -> None:
    assert EngramLayout.compute(2, 3, 2, 50).num_rows == (240, 306)
    assert EngramLayout.compute(2, 4, 4, 2000).num_rows == (24_562, 25_586)


def test_no_prime_is_used_twice() -> None:
    flat = [p for layer in EngramLayout.compute(3, 4, 5, 10).primes for heads in layer for p in heads]
    assert len(flat) == len(set(flat)) == 45
    assert all(is_prime(p) for p in flat)


def test_the_search_may_start_at_the_smallest_numbers() -> None:
    assert EngramLayout.compute(1, 2, 3, 1).primes == (((2, 3, 5),),)


def test_primality_agrees_with_a_sieve() -> None:
    limit = 5000
    sieve = np.ones(limit, dtype=bool)
    sieve[:2] = False
    for n in range(2, 71):
        if sieve[n]:
            sieve[n * n :: n] = False
    assert [is_prime(n) for n in range(limit)] == sieve.tolist()
    assert not is_prime(3_215_031_751)


def test_products_with_small_vocabularies_stay_in_int64() -> None:
    for size in (1, 2, 150, 3091):
        multipliers = hash_multipliers(3, 4, size)
        assert all(0 < int(m) * (size - 1) < 2**63 for m in multipliers) or size == 1
    with pytest.raises(ConfigError, match="engram_compressed_vocab_size is 0"):
        hash_multipliers(1, 4, 0)


def test_declared_rows_must_be_the_sums() -> None:
    check_num_rows([240, 306], EngramLayout.compute(2, 3, 2, 50))
    with pytest.raises(ConfigError, match=r"is \[240\]; .* sum to \[240, 306\]"):
        check_num_rows([240], EngramLayout.compute(2, 3, 2, 50))
