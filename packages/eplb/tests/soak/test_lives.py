"""Many random rearrangements of two to four ranks, in half of which a rank is killed at any moment."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ranks"))

from eplb_ranks.launch import Launcher
from eplb_ranks.lives import live

pytestmark = pytest.mark.distributed


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.kill_all()


@pytest.mark.parametrize("seed", range(100))
def test_experts_arrive_or_the_lost_rank_is_named(launcher: Launcher, seed: int) -> None:
    rng = random.Random(seed)
    size, kind = rng.randint(2, 4), rng.choice(["peers", "shared", "stand-in"])
    victim = rng.randrange(size) if seed % 2 else None
    ended = launcher.run(live, size, kind=kind, seed=seed, victim=victim)
    survivors = [rank for number, rank in enumerate(ended) if number != victim]
    assert not any(rank.error for rank in survivors), "\n".join(rank.error for rank in survivors)
    results = [rank.result for rank in survivors]
    for result in results:
        assert result["fits"]
        assert result["is_consistent"]
        assert result["lost"] in ((), (victim,))
        assert result["is_done"] == (not result["lost"])
    # All or none have missed the rank: it may have done its part to the last before it was killed.
    assert len({result["lost"] for result in results}) == 1
    if not results[0]["lost"]:
        assert all(np.array_equal(result["slots"], results[0]["slots"]) for result in results)
