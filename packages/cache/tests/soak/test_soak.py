"""Long random runs of the simulations; the tests beside this folder run a short piece of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from thalweg.cache import CacheGeometry

Simulation = Callable[[int, int, int], int]


@pytest.mark.parametrize("ring_length", [133, 134, 139, 262])
@pytest.mark.parametrize("seed", range(12))
def test_window_rings_survive_thousands_of_rejections(window_ring: Simulation, ring_length: int, seed: int) -> None:
    assert window_ring(ring_length, 2000, seed) == 0


@pytest.mark.parametrize("ring_length", [7, 8, 16])
@pytest.mark.parametrize("seed", range(10))
def test_compressor_rings_survive_thousands_of_rejections(
    compressor_ring: Simulation, ring_length: int, seed: int
) -> None:
    assert compressor_ring(ring_length, 2000, seed) == 0


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("fp4_main", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_reads_return_what_was_written_over_long_lives(
    pool_simulation: Callable[..., Any], tiny_geometry: CacheGeometry, plain: bool, fp4_main: bool, seed: int
) -> None:
    simulation = pool_simulation(replace(tiny_geometry, plain=plain, fp4_main=fp4_main), 1000 + seed)
    for _ in range(120):
        simulation.step()
