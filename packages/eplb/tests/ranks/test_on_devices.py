"""Moving experts whose weights are on devices, while recorded graphs read them.

Two ranks can share a device for symmetric memory, not for NCCL.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from eplb_ranks.devices import replay_while_moving
from eplb_ranks.launch import Launcher
from eplb_ranks.moves import LAYERS

pytestmark = [pytest.mark.gpu, pytest.mark.distributed]


@pytest.fixture
def num_devices() -> int:
    """CUDA devices; skips without one, and fails where THALWEG_REQUIRE claims that there is one."""
    if not torch.cuda.is_available():
        (pytest.fail if "THALWEG_REQUIRE" in os.environ else pytest.skip)("torch finds no CUDA device")
    return torch.cuda.device_count()


@pytest.mark.parametrize("kind", ["symmetric", "peers"])
def test_a_recorded_graph_sees_the_right_experts_in_every_step(
    kind: str, num_devices: int, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "peers" and num_devices < 2:
        pytest.skip("NCCL needs a device for each rank")
    monkeypatch.setenv("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    for result in launcher.results(replay_while_moving, 2, kind=kind, device_type="cuda"):
        assert all(result["is_right"])
        assert result["fits"]
        assert [*itertools.chain(*result["switched"])] == [*range(LAYERS)] * 2
        assert any(not layers for layers in result["switched"]), "some step ran while experts were moving"
