"""Two engines with the real model in two processes produce what one engine does alone."""

import re
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from thalweg.engine import LLM, SamplingParams

EXAMPLE = Path(__file__).parent.parent / "examples" / "ranks.py"


@pytest.mark.distributed
def test_ranks_that_step_together_say_what_each_says_alone() -> None:
    result = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"^rank \d, prompt \d: (.+) -> (.+)$", result.stdout, re.MULTILINE)
    together = {literal_eval(prompt): literal_eval(text) for prompt, text in lines}
    assert len(together) == 3
    with LLM(max_model_len=256, arithmetic="float32") as llm:
        outputs = llm.generate(list(together), SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    assert together == {output.prompt: output.outputs[0].text for output in outputs}
