"""Every benchmark runs at its smallest size; how fast is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*_*.py"))


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_runs_and_reports(script: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, script, "--smoke", "--json", report]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert json.loads(report.read_text())["rows"]
