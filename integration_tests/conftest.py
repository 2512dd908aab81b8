"""A recorder that sees what the model computed for each request, whatever the batch around it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.engine import LLM, SamplingParams
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.runner import StreamRunner
from thalweg.interfaces import RequestOutput, StepPlan
from thalweg.kernels import RecordFormat
from thalweg.kernels.reference.cache import gather_records
from thalweg.model import Model, NativeModel, write_random_checkpoint
from thalweg.model.tiny import small_config

sys.path.insert(0, str(Path(__file__).parent))

from devices import load_model, widths
from preloaded import PreloadedPython
from rollback_testing.models import TWO_LAYERS


@pytest.fixture(scope="session")
def preloaded() -> Iterator[PreloadedPython]:
    python = PreloadedPython()
    yield python
    python.close()


FORMATS = {
    "window": RecordFormat.MXFP8,
    "main": RecordFormat.FP4_MAIN,
    "index_keys": RecordFormat.MXFP4_INDEX,
}


@dataclass
class Recording:
    """What a run computed: per prompt, logits by context length and the cache contents at the end."""

    outputs: list[RequestOutput] = field(default_factory=list)
    logits: list[dict[int, torch.Tensor]] = field(default_factory=list)
    caches: list[dict[str, torch.Tensor]] = field(default_factory=list)
    num_steps: int = 0
    num_preempted: int = 0

    def assert_equal(self, other: Recording) -> None:
        """Bit for bit: tokens, logits wherever both sampled, and de-quantised cache values."""
        assert tokens(self) == tokens(other)
        for mine, theirs in zip(self.logits, other.logits, strict=True):
            shared = mine.keys() & theirs.keys()
            assert max(shared) == max(mine) == max(theirs)
            assert all(torch.equal(mine[length], theirs[length]) for length in shared)
        for mine, theirs in zip(self.caches, other.caches, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def tokens(recording: Recording) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in recording.outputs]


def read_cache(device: ModelDevice, plan: StepPlan, row: int) -> dict[str, torch.Tensor]:
    """The de-quantised rows that the next token of this sequence could read."""
    pools, length = device.pools, int(plan.context_lengths[row])
    config = device.model.config
    blocks = torch.from_numpy(plan.block_ids[plan.block_offsets[row] : plan.block_offsets[row + 1]]).long()
    result: dict[str, torch.Tensor] = {}
    ring = pools.layout.ring_length
    positions = torch.arange(max(0, length - config.sliding_window), length)
    for layer in range(config.num_hidden_layers):
        slots = int(plan.state_slots[row]) * ring + positions % ring
        result[f"window {layer}"] = gather_records(pools.window(layer), slots, RecordFormat.MXFP8, torch.float64)
    for layer in config.kv_source_layer_ids:
        view = pools.main(layer)
        per_block = view.shape[1]
        entries = torch.arange(length // config.compress_ratios[layer])
        slots = blocks[entries // per_block] * per_block + entries % per_block
        result[f"main {layer}"] = gather_records(view, slots, RecordFormat.FP4_MAIN, torch.float64)
        keys = pools.index_keys(layer)
        result[f"index {layer}"] = gather_records(keys, slots, RecordFormat.MXFP4_INDEX, torch.float64)
    return result


class Recorder:
    """Runs prompts through an engine and keeps what the sampler saw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def run(
        self,
        llm: LLM,
        prompts: list[list[int]],
        params: SamplingParams | list[SamplingParams],
        mangle: Callable[[LLM], None] | None = None,
    ) -> Recording:
        recording = Recording()
        logits: dict[int, dict[int, torch.Tensor]] = {}
        caches: dict[int, dict[str, torch.Tensor]] = {}
        last: dict[int, tuple[StepPlan, int]] = {}
        plans: list[StepPlan] = []
        launch, sample = StreamRunner.launch, ModelDevice.sample

        def recording_launch(runner: StreamRunner, plan: StepPlan, previous: Any) -> Any:
            assert previous is None, "the recorder reads caches between steps"
            plans.append(plan)
            for sequence in plan.finished_ids.tolist():  # its memory is held until this plan is released
                caches[sequence] = read_cache(runner.device, *last[sequence])  # type: ignore[arg-type]
            for row, sequence in enumerate(plan.sequence_ids.tolist()):
                last[sequence] = plan, row
            return launch(runner, plan, previous)

        def recording_sample(device: ModelDevice, forwarded: Any, inputs: Any) -> Any:
            plan = plans[-1]
            for row, sequence in enumerate(plan.sequence_ids.tolist()):
                if plan.context_lengths[row] >= plan.committed_lengths[row]:
                    values = forwarded.logits[row].clone()
                    logits.setdefault(sequence, {})[int(plan.context_lengths[row])] = values
            return sample(device, forwarded, inputs)

        with self._monkeypatch.context() as patch:
            patch.setattr(StreamRunner, "launch", recording_launch)
            patch.setattr(ModelDevice, "sample", recording_sample)
            if mangle is not None:
                mangle(llm)
            recording.outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
        recording.logits = [logits[key] for key in sorted(logits)]
        recording.caches = [caches[key] for key in sorted(caches)]
        recording.num_steps = len(plans)
        recording.num_preempted = plans[-1].stats.num_preempted if plans else 0
        return recording


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model of two layers, for long runs: both compress ratios, window, indexer, experts, Engram."""
    path = tmp_path_factory.mktemp("small") / "checkpoint"
    write_random_checkpoint(path, small_config(**widths(), **TWO_LAYERS), seed=4)
    return str(path)


@pytest.fixture(scope="session")
def small_model(small_checkpoint: str) -> Model | NativeModel:
    return load_model(small_checkpoint)
