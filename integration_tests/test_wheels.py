"""What a stranger gets from the wheels: the extension, the checkpoint, and text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import thalweg.engine
import thalweg.scheduler
from thalweg.engine import LLM, SamplingParams


@pytest.mark.skipif("THALWEG_TEST_WHEELS" not in os.environ, reason="runs only in the environment made of wheels")
def test_the_components_come_from_wheels_not_from_the_source_tree() -> None:
    root = Path(__file__).parent.parent / "packages"
    assert root not in Path(thalweg.engine.__file__ or "").parents


def test_the_extension_knows_its_version() -> None:
    assert thalweg.scheduler.build_info()["version"] == thalweg.scheduler.__version__


def test_the_embedded_checkpoint_generates_text() -> None:
    with LLM() as llm:
        output = llm.generate("def __init__(self, ", SamplingParams(temperature=0, max_tokens=4))[0]
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].text


def test_the_command_line_is_installed() -> None:
    command = Path(sys.executable).with_name("thalweg")
    result = subprocess.run([command, "kernels"], capture_output=True, text=True, check=True)
    assert "rms_norm" in result.stdout
