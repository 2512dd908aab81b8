"""The trained checkpoint through the whole engine reproduces its recorded greedy continuations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thalweg.engine import LLM, SamplingParams
from thalweg.interfaces import StepKind, StepPlan

ROOT = Path(__file__).parent.parent
RECORDED = json.loads((Path(__file__).parent / "golden" / "baselines.json").read_text(encoding="utf-8"))
CASES = RECORDED["greedy"][:6]
"""The prompts of the quickstart."""
PARAMS = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)


@pytest.mark.parametrize(
    "scheduling",
    [
        {"async_scheduling": True, "check_lengths": True},
        {"chunked_prefill": True, "max_num_batched_tokens": 128, "num_blocks": 9},
    ],
)
def test_a_batch_of_all_prompts_gives_the_recorded_tokens(scheduling: dict[str, int]) -> None:
    with LLM(max_model_len=128, max_num_seqs=8, **scheduling) as llm:
        outputs = llm.generate([case["prompt"] for case in CASES], PARAMS, use_tqdm=False)
    for output, case in zip(outputs, CASES, strict=True):
        assert list(output.prompt_token_ids) == case["prompt_token_ids"]
        assert list(output.outputs[0].token_ids) == case["greedy_token_ids"]
        assert output.outputs[0].text == case["text"]


def test_prompts_cut_into_chunks_give_the_recorded_tokens() -> None:
    """Three of each in an order in which the token budget ends inside a prompt."""
    cases = CASES[::-1] * 3
    options = {"max_model_len": 128, "max_num_seqs": len(cases), "chunked_prefill": True, "max_num_batched_tokens": 128}
    with LLM(**options) as llm:
        plan, cut = llm.engine.scheduler.finish_step, []

        def finish_step(kind: StepKind) -> StepPlan:
            planned = plan(kind)
            cut.append(bool((planned.context_lengths < planned.committed_lengths).any()))
            return planned

        llm.engine._scheduler = _Watched(llm.engine.scheduler, finish_step)  # type: ignore[assignment]
        outputs = llm.generate([case["prompt"] for case in cases], PARAMS, use_tqdm=False)
    assert any(cut)
    for output, case in zip(outputs, cases, strict=True):
        assert list(output.outputs[0].token_ids) == case["greedy_token_ids"]


class _Watched:
    """A scheduler whose plans are seen."""

    def __init__(self, inner: Any, finish_step: Any) -> None:
        self._inner = inner
        self.finish_step = finish_step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_the_quickstart_prints_the_recorded_continuations() -> None:
    command = [sys.executable, ROOT / "examples" / "quickstart.py"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for case in CASES:
        assert case["prompt"] + case["text"] in printed
