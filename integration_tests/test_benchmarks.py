"""Every benchmark runs at its smallest size; how fast is not tested."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from preloaded import PreloadedPython

ROOT = Path(__file__).parent.parent
BENCHMARKS = [script for script in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in script.read_text()]
"""The other modules are what several of them share."""
OF_GPUS = [
    ROOT / "benchmarks" / f"kernels_{name}.py"
    for name in ("attention", "cache", "experts", "indexer", "linear", "sampling_sm90")
]
"""They measure what only a GPU does, and say so where there is none."""


def test_the_docs_say_which_benchmarks_need_a_gpu() -> None:
    text = (ROOT / "docs" / "benchmarks" / "index.md").read_text()
    paragraph = next(part for part in text.split("\n\n") if "no size that runs without a GPU" in part)
    assert [script.stem for script in OF_GPUS if f"`{script.stem}`" not in paragraph] == []
    assert [script.stem for script in BENCHMARKS if f"`{script.stem}`" in paragraph and script not in OF_GPUS] == []


@pytest.mark.parametrize("script", OF_GPUS, ids=lambda path: path.stem)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_benchmark_of_gpus_says_what_it_needs(script: Path, tmp_path: Path, preloaded: PreloadedPython) -> None:
    result = preloaded.run(script, ["--smoke"], cwd=tmp_path)
    assert result.returncode == 77
    build = "" if torch.version.cuda else f", as torch {torch.__version__} is built without CUDA"
    assert result.stderr == (
        f"torch finds no CUDA device{build}; this benchmark needs a GPU of compute capability 9.0\n"
    )


@pytest.mark.parametrize(
    "script", [script for script in BENCHMARKS if script not in OF_GPUS], ids=lambda path: path.stem
)
def test_a_benchmark_runs_and_reports(script: Path, tmp_path: Path, preloaded: PreloadedPython) -> None:
    report = tmp_path / "report.json"
    result = preloaded.run(script, ["--smoke", "--json", str(report)], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert json.loads(report.read_text())["rows"]


def test_the_smallest_size_of_a_step_takes_no_other_sizes(tmp_path: Path, preloaded: PreloadedPython) -> None:
    script = ROOT / "benchmarks" / "engine_decode_step.py"
    result = preloaded.run(script, ["--smoke", "--batch", "--prefill", "0"], cwd=tmp_path)
    assert result.returncode == 2
    assert "--smoke has sizes of its own; --batch, --prefill cannot be given with it" in result.stderr
    result = preloaded.run(script, ["--batch", "--prefill", "0"], cwd=tmp_path)
    assert "there is nothing to measure" in result.stderr


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """The runner beside benchmarks of which one runs, one cannot run here, one fails, and one is no benchmark."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "benchmarks").mkdir()
    endings = {
        "runs": "print(__name__ == '__main__', sys.argv[1:])",
        "needs": "print('no GPU', file=sys.stderr); sys.exit(77)  # only where __main__ can",
        "fails": "sys.exit('__main__ is bad')",
        "shared": "sys.exit('never run')",
    }
    for name, ending in endings.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(f"import sys\n{ending}\n")
    return Path(shutil.copy(ROOT / "tools" / "run_benchmarks.py", tmp_path / "tools"))


def run(runner: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, runner, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=runner.parent.parent)


def test_all_benchmarks_that_can_run_here_do_and_the_others_are_named(runner: Path) -> None:
    result = run(runner, "--smoke")
    assert result.returncode == 1
    assert "True ['--smoke']" in result.stdout
    assert result.stdout.splitlines()[-3:] == [
        "1 of 3 benchmarks ran",
        "skipped needs.py: no GPU",
        "failed fails.py: __main__ is bad",
    ]
    assert result.stderr == "__main__ is bad\nno GPU\n"


def test_a_benchmark_that_cannot_run_here_is_a_failure_only_if_it_was_asked_for(runner: Path) -> None:
    assert run(runner, "benchmarks/needs.py").returncode == 1
    assert run(runner, "benchmarks/runs.py").returncode == 0
    (runner.parent.parent / "benchmarks" / "fails.py").unlink()
    assert run(runner).returncode == 0
