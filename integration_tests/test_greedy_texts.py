"""The trained checkpoint through the whole engine reproduces its recorded greedy continuations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.engine import LLM, SamplingParams

ROOT = Path(__file__).parent.parent
CASES = json.loads((Path(__file__).parent / "golden" / "greedy.json").read_text())
PARAMS = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)


@pytest.mark.parametrize("scheduling", [{}, {"chunked_prefill": True, "max_num_batched_tokens": 128, "num_blocks": 9}])
def test_a_batch_of_all_prompts_gives_the_recorded_tokens(scheduling: dict[str, int]) -> None:
    with LLM(max_model_len=128, max_num_seqs=8, **scheduling) as llm:
        outputs = llm.generate([case["prompt"] for case in CASES], PARAMS, use_tqdm=False)
    for output, case in zip(outputs, CASES, strict=True):
        assert list(output.prompt_token_ids) == case["prompt_token_ids"]
        assert list(output.outputs[0].token_ids) == case["greedy_token_ids"]
        assert output.outputs[0].text == case["text"]


def test_the_quickstart_prints_the_recorded_continuations() -> None:
    command = [sys.executable, ROOT / "examples" / "quickstart.py"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for case in CASES:
        assert case["prompt"] + case["text"] in printed
