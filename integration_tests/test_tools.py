"""The check that keeps CUDA libraries out of CPU environments, that of a wheelhouse, and the figure of a trace."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from thalweg.engine import Timeline

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.mark.parametrize(
    ("name", "others", "is_unwanted"),
    [
        ("nvidia-cublas", [], True),
        ("nvidia-cublas", ["xgrammar"], True),
        ("Triton", [], True),
        ("Triton", ["xgrammar"], False),
        ("pytorch-triton-like", [], False),
    ],
)
@pytest.mark.parametrize("is_ci", [True, False])
def test_a_cuda_library_fails_the_environment_check_under_ci_only(
    tmp_path: Path, name: str, others: list[str], is_unwanted: bool, is_ci: bool
) -> None:
    for each in (name, *others):
        folder = tmp_path / f"{each.replace('-', '_')}-1.5.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {each}\nVersion: 1.5\n")
    environ = {key: value for key, value in os.environ.items() if key != "CI"} | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-S", TOOLS / "check_environment.py"]  # without what is really installed
    result = subprocess.run(command, capture_output=True, text=True, env=environ | ({"CI": "true"} if is_ci else {}))
    assert (f"{name.lower()} 1.5" in result.stderr) is is_unwanted
    assert result.returncode == int(is_unwanted and is_ci)


def test_a_trace_is_drawn_from_the_launch_of_a_step(tmp_path: Path) -> None:
    timeline = Timeline()
    for step in range(3):
        start = 1_000_000_000 + step * 35_000_000
        timeline.record("host", "launch", start, start + 1_000_000, step=step)
        timeline.record("device", "forward", start + 1_000_000, start + 21_000_000, step=step)
    timeline.write(tmp_path / "trace.json")
    command = [sys.executable, TOOLS / "trace_figure.py", f"a <title>={tmp_path / 'trace.json'}", "--first-step", "1"]
    subprocess.run([*command, "--out", tmp_path / "figure.svg"], check=True)
    figure = ElementTree.parse(tmp_path / "figure.svg").getroot()
    texts = [element.text for element in figure.iter("{http://www.w3.org/2000/svg}text")]
    assert "a <title>" in texts
    assert [text for text in texts if text and text.startswith("forward")] == ["forward 1", "forward 2"]
    result = subprocess.run([*command[:-1], "9", "--out", tmp_path / "none.svg"], capture_output=True, text=True)
    assert result.returncode == 1
    assert "has no launch of step 9" in result.stderr


def write_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", metadata)


def check_wheelhouse(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, str(TOOLS / "wheelhouse.py"), str(folder), *arguments, "--python", "3.12"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stderr.splitlines()


def test_a_wheelhouse_that_lacks_something_is_refused_with_who_needs_it(tmp_path: Path) -> None:
    write_wheel(
        tmp_path, "engine", "0.1.0", "numbers>=2", "torch>=2.11", "old; python_version < '3.12'", "nvcc; extra == 'gpu'"
    )
    write_wheel(tmp_path, "numbers", "1.9")
    code, lines = check_wheelhouse(tmp_path, "engine[gpu]", "--provided", "torch==2.11.0+host")
    assert code == 1
    assert lines == ["missing: numbers>=2 for engine", 'missing: nvcc; extra == "gpu" for engine']
    write_wheel(tmp_path, "numbers", "2.1", "torch")
    (tmp_path / "numbers-1.9-py3-none-any.whl").unlink()
    assert check_wheelhouse(tmp_path, "engine", "--provided", "torch==2.11.0+host") == (0, [])
    code, lines = check_wheelhouse(tmp_path, "engine", "ninja")
    assert lines == [
        "missing: ninja for the command line",
        "missing: torch for numbers",
        "missing: torch>=2.11 for engine",
    ]


def test_a_sanitizer_that_says_nothing_watched_nothing(tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    file.write_text("import pytest\n\n@pytest.mark.memcheck\ndef test_one():\n    pass\n")
    command = [sys.executable, TOOLS / "memcheck.py", "--sanitizer", "true", file]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "1 tests, 0 of 1 processes clean" in result.stdout
