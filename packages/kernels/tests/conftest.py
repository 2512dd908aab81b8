"""Where the recorded vectors of this package are, how tests read them, and the helpers of the tests."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from thalweg.kernels.testing import from_bf16_bits, load_vectors

sys.path.insert(0, str(Path(__file__).parent))

# A busy machine must not fail a property.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def vectors() -> Callable[[str], dict[str, torch.Tensor]]:
    """Tensors of golden/<name>.npz; a key with a bfloat16 mark in its name comes as bfloat16, without the mark."""

    def load(name: str) -> dict[str, torch.Tensor]:
        tensors = {}
        for key, array in load_vectors(GOLDEN / f"{name}.npz").items():
            for mark in (".bf16", "_bf16_bits", "_bf16"):
                if key.endswith(mark):
                    tensors[key.removesuffix(mark)] = from_bf16_bits(array)
                    break
            else:
                tensors[key.removesuffix(".e4m3")] = torch.from_numpy(array)
        return tensors

    return load


@pytest.fixture
def recorded() -> Callable[[str], Any]:
    """The contents of golden/<name>.json."""
    return lambda name: json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.fixture
def cuda() -> torch.device:
    """The CUDA device; skips without one, and fails where THALWEG_REQUIRE claims that there is one."""
    if not torch.cuda.is_available():
        if os.environ.get("THALWEG_REQUIRE") in ("sm90", "sm100"):
            pytest.fail(f"THALWEG_REQUIRE is {os.environ['THALWEG_REQUIRE']}, and torch finds no CUDA device")
        pytest.skip("torch finds no CUDA device")
    return torch.device("cuda")


@pytest.fixture
def hopper(cuda: torch.device) -> torch.device:
    """The CUDA device if it runs the kernels of sm90; skips without, and fails where THALWEG_REQUIRE claims it does."""
    missing = "tilelang is not installed" if importlib.util.find_spec("tilelang") is None else None
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        missing = "the CUDA device is no Hopper GPU"
    if missing is not None:
        (pytest.fail if os.environ.get("THALWEG_REQUIRE") == "sm90" else pytest.skip)(missing)
    return cuda
