import subprocess
import sys
from pathlib import Path

from thalweg.model import write_random_checkpoint


def test_generate_writes_the_statistics_line_to_standard_error_when_asked(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "model", seed=4)
    command = [sys.executable, "-m", "thalweg.engine.cli", "generate", "--model", str(tmp_path / "model")]
    command += ["--prompt", "abc", "--max-tokens", "5", "--max-model-len", "256", "--logging-interval-steps", "2"]
    result = subprocess.run([*command, "--log-stats"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in lines[:2]] == ["step 0 (prefill)", "step 2 (decode)"]
    assert "abc" in result.stdout
