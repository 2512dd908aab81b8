"""A real model with its own drafter, served as users do: drafts change no greedy text, and no coupled one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.engine import EngineConfig, SamplingParams, build_engine
from thalweg.interfaces import CompletionOutput
from thalweg.model import DraftNetwork, Model

CHECKPOINT = Path(__file__).parents[1] / "packages" / "model" / "tests" / "golden" / "tiny_a"
NUM_PROMPTS = 12
COUPLED = {"verification": "coupled", "max_num_seqs": 6}
WAYS: dict[str, dict[str, Any]] = {
    "by rejection": {"max_num_seqs": NUM_PROMPTS},
    "one draft": COUPLED | {"draft_length": 1},
    "of lengths that vary by a measured curve": COUPLED | {"async_scheduling": True, "variable_length": True},
    "recomputed": COUPLED | {"async_scheduling": True, "num_blocks": 5, "prefill_interval_all": 2},
}


@cache
def model() -> tuple[Model, DraftNetwork]:
    loaded = Model.load(CHECKPOINT)
    return loaded, DraftNetwork.load(CHECKPOINT, loaded)


def serve(**options: Any) -> tuple[list[CompletionOutput], int, int]:
    """What the prompts become, every second of them greedily; how many drafts held, and preemptions."""
    settled = {"max_model_len": 200, "stop_preempted_request": False} | options
    config = EngineConfig.build(environ={}, model=str(CHECKPOINT), check_lengths=True, **settled)
    network = None if config.speculation.draft_length == 0 else model()[1]
    random = np.random.default_rng(5)
    held: list[int] = []
    with build_engine(config, model=model()[0], draft_network=network) as engine:
        engine.statistics.on_step(lambda record: held.append(int((record.outcome.num_accepted - 1).clip(0).sum())))
        for number in range(NUM_PROMPTS):
            prompt = random.integers(5, model()[0].config.vocab_size, int(random.choice([1, 7, 20, 124]))).tolist()
            params = SamplingParams(max_tokens=8, seed=number, temperature=0.7 * (number % 2), ignore_eos=True)
            engine.add_request(str(number), prompt, params)
        finals = {}
        while engine.has_unfinished():
            finals |= {output.request_id: output for output in engine.step() if output.finished}
        assert engine.failure is None, engine.failure
    outputs = [finals[str(number)] for number in range(NUM_PROMPTS)]
    num_preemptions = sum(output.metrics.num_preemptions for output in outputs if output.metrics)
    return [output.outputs[0] for output in outputs], sum(held), num_preemptions


@cache
def plain() -> list[CompletionOutput]:
    return serve(draft_length=0, verification="coupled", max_num_seqs=NUM_PROMPTS)[0]


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_those_without_drafts(way: str) -> None:
    said, num_held, num_preemptions = serve(**WAYS[way])
    assert said[::2] == plain()[::2]
    if way != "by rejection":
        assert said[1::2] == plain()[1::2]
    assert num_held
    assert bool(num_preemptions) == (way == "recomputed")
