"""How much memory a plan at full size takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_MB = 300
PROGRAM = """
import pathlib, re
import numpy as np
from thalweg.eplb import plan

rng = np.random.default_rng(0)
rates = rng.gamma(0.5, 400.0, (40, 384))
history = np.empty((1000, 40, 384), np.int32)
for step in history:
    step[:] = rng.poisson(rates)
plan(history, 448, 64)
print(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
def test_a_plan_for_64_ranks_stays_small() -> None:
    """The peak of resident memory of a process of its own, its history of 61 MB and the interpreter included."""
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    assert int(process.stdout) * 1024 < LIMIT_MB * 1e6
