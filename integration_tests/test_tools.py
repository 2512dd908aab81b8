"""The check that keeps CUDA libraries out of CPU environments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.mark.parametrize(
    ("name", "is_unwanted"), [("nvidia-cublas", True), ("Triton", True), ("pytorch-triton-like", False)]
)
@pytest.mark.parametrize("is_ci", [True, False])
def test_a_cuda_library_fails_the_environment_check_under_ci_only(
    tmp_path: Path, name: str, is_unwanted: bool, is_ci: bool
) -> None:
    folder = tmp_path / f"{name.replace('-', '_')}-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    environ = {key: value for key, value in os.environ.items() if key != "CI"} | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, TOOLS / "check_environment.py"]
    result = subprocess.run(command, capture_output=True, text=True, env=environ | ({"CI": "true"} if is_ci else {}))
    assert (f"{name.lower()} 1.5" in result.stderr) is is_unwanted
    if is_unwanted:
        assert result.returncode == int(is_ci)
