"""Every benchmark runs at its smallest size; how fast is not tested."""

import json
from pathlib import Path

import pytest
import torch

from preloaded import PreloadedPython

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*_*.py"))
BENCHMARKS = [script for script in SCRIPTS if "__main__" in script.read_text()]
"""The others are what several of them share."""
OF_GPUS = [script for script in BENCHMARKS if "require_gpu()" in script.read_text()]
"""They measure what only a GPU does, and say so where there is none."""


@pytest.mark.parametrize("script", OF_GPUS, ids=lambda path: path.stem)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_benchmark_of_gpus_says_what_it_needs(script: Path, tmp_path: Path, preloaded: PreloadedPython) -> None:
    result = preloaded.run(script, ["--smoke"], cwd=tmp_path)
    assert result.returncode != 0
    assert "torch finds no CUDA device" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "script", [script for script in BENCHMARKS if script not in OF_GPUS], ids=lambda path: path.stem
)
def test_a_benchmark_runs_and_reports(script: Path, tmp_path: Path, preloaded: PreloadedPython) -> None:
    report = tmp_path / "report.json"
    result = preloaded.run(script, ["--smoke", "--json", str(report)], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert json.loads(report.read_text())["rows"]
