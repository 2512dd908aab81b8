"""Every benchmark runs at its smallest size; how fast is not tested."""

import json
from pathlib import Path

import pytest

from preloaded import PreloadedPython

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*_*.py"))
BENCHMARKS = [script for script in SCRIPTS if "__main__" in script.read_text()]
"""The others are what several of them share."""


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_runs_and_reports(script: Path, tmp_path: Path, preloaded: PreloadedPython) -> None:
    report = tmp_path / "report.json"
    result = preloaded.run(script, ["--smoke", "--json", str(report)], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert json.loads(report.read_text())["rows"]
