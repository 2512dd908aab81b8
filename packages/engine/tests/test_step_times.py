"""The step-time curve: how it is measured, what keeps it apart from others, and what is fed back to the scheduler."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.bench import Bench, params
from engine_testing.cores import CORES
from engine_testing.scripted import ScriptedDrafter

from thalweg.cache import MetadataShape
from thalweg.dspark import StepTimeCurve
from thalweg.engine import EngineConfig, step_time_curve
from thalweg.engine.inputs import DecodeInputs, InputBuilder
from thalweg.engine.step_time_curve import curve_key, size_on_curve
from thalweg.engine.step_time_profile import NUM_TIMED, measure_step_times, profile_sizes
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.engine.tokenizer import Tokenizer
from thalweg.kernels.backends import fifo
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model import small_config

VOCAB = 50
PARTS = ("thalweg-engine", "thalweg-kernels", "thalweg-model")


class TimedDevice:
    """Notes what it is asked to compute; a forward pass of T rows takes as long as `times_s` says, on its own clock."""

    def __init__(self, times_s: dict[int, list[float]]) -> None:
        self.now_s = 0.0
        self.times_s = times_s
        self.calls: list[DecodeInputs] = []

    def prepare(self, inputs: DecodeInputs, left: None, *, redistribute: bool) -> DecodeInputs:
        assert left is None
        assert not redistribute
        assert torch.is_inference_mode_enabled()
        self.now_s += 100.0
        return inputs

    def forward(self, inputs: DecodeInputs) -> None:
        self.calls.append(inputs)
        self.now_s += self.times_s[inputs.num_rows].pop(0)


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (24, (1, 2, 4, 8, 16, 24))]
)
def test_sizes_are_powers_of_two_and_the_largest(most: int, sizes: tuple[int, ...]) -> None:
    assert profile_sizes(most) == sizes


def test_a_time_is_the_mean_of_the_middle_three_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = TimedDevice({4: [9.0, 0.2, 7.0, 0.1, 0.3, 0.4], 1: [9.0, 0.25, 0.25, 0.25, 0.25, 0.25]})
    monkeypatch.setattr(fifo, "time", SimpleNamespace(perf_counter_ns=lambda: round(1e9 * device.now_s)))
    vocabulary = CompressedVocabulary(np.arange(VOCAB) + 100, 2, 3)
    inputs = InputBuilder(MetadataShape(8, 4, 9, (2,)), vocabulary)
    curve = measure_step_times(CpuBackend(), device, inputs, (1, 4), draft_length=2, vocab_size=VOCAB)
    assert list(curve) == [(1, pytest.approx(250.0)), (4, pytest.approx(300.0))]
    assert [call.num_rows for call in device.calls] == [4] * (1 + NUM_TIMED) + [1] * (1 + NUM_TIMED)


def test_measured_rows_are_real_ones_that_touch_nobodys_memory() -> None:
    inputs = InputBuilder(MetadataShape(8, 4, 9, (2,)), CompressedVocabulary(np.arange(VOCAB) + 100, 2, 3))
    rows = inputs.dummy(30, 2, VOCAB)
    assert not rows.is_placeholder.any()
    assert not rows.state_slots.any()
    assert not rows.block_ids.any()
    assert rows.query_lengths.tolist() == [1] * 30
    assert (rows.previous_rows < 0).all()
    assert 0 <= rows.token_ids.min() <= rows.token_ids.max() < VOCAB
    assert len(set(rows.token_ids[:, 0].tolist())) > 20
    assert rows.windows.shape == (30, 2 + 2)


def test_a_size_between_two_points_counts_as_the_larger() -> None:
    curve = StepTimeCurve([(2, 1.0), (4, 2.0), (9, 3.0)])
    assert [size_on_curve(curve, size) for size in (1, 2, 3, 4, 5, 9, 12)] == [2, 2, 4, 4, 9, 9, 9]


def test_curves_of_other_deployments_have_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[str, Any] = {
        "config": EngineConfig(),
        "path": Path("/models/a"),
        "facts": small_config(),
        "drafter": None,
        "sizes": (1, 2, 4),
        "device_name": "one",
    }
    digest = curve_key(**first).digest
    assert curve_key(**(first | {"config": EngineConfig(), "facts": small_config()})).digest == digest
    config = first["config"]
    changes: list[dict[str, Any]] = [
        {"path": Path("/models/b")},
        {"facts": small_config(hidden_size=2 * small_config().hidden_size)},
        {"drafter": ScriptedDrafter(None, 2)},  # type: ignore[arg-type]
        {"sizes": (1, 2)},
        {"device_name": "another"},
        {"config": config.with_options(arithmetic="float32")},
        {"config": config.with_options(mode="plain")},
        {"config": config.with_options(draft_length=3)},
        {"config": config.with_options(kernels=(("rms_norm", "other"),))},
    ]
    others = [curve_key(**(first | change)) for change in changes]
    for module, name, value in (
        (torch, "get_num_threads", lambda: 77),
        *[(step_time_curve, "version", lambda name, new=new: "77" if name == new else version(name)) for new in PARTS],
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            others.append(curve_key(**first))
    assert len({digest, *(other.digest for other in others)}) == 1 + len(others)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("core", CORES)
def test_the_scheduler_hears_how_long_decode_steps_took(tokenizer: Tokenizer, core: Any, is_async: bool) -> None:
    curve = ((1, 2.0), (4, 3.0), (16, 5.0))
    bench = Bench(tokenizer, core=core, async_scheduling=is_async, draft_length=3, step_times=curve, max_num_seqs=4)
    heard: list[tuple[int, int]] = []
    tell = bench.scheduler.record_step_time

    def record_step_time(num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        assert forward_ms > 0
        assert sampler_ms > 0
        heard.append((num_rows, graph_size))
        tell(num_rows, graph_size, forward_ms, sampler_ms)

    bench.engine._scheduler = SpyScheduler(bench.scheduler, record_step_time)  # type: ignore[assignment]
    expected: list[tuple[int, int]] = []

    def note(record: Any) -> None:
        rows = record.plan.sequence_ids.size
        if not record.plan.token_ids.size and rows:
            expected.append((rows, size_on_curve(StepTimeCurve(curve), int(record.plan.query_lengths.sum()))))

    bench.engine.statistics.on_step(note)
    for index in range(4):
        bench.engine.add_request(str(index), "z", params(max_tokens=5 + 4 * index))
    bench.drain()
    assert heard == expected
    assert {size for _, size in heard} > {4}


class SpyScheduler:
    """A scheduler with another `record_step_time`."""

    def __init__(self, inner: Any, record_step_time: Any) -> None:
        self._inner = inner
        self.record_step_time = record_step_time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_without_a_curve_nothing_is_fed_back(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, draft_length=3)

    def refuse(*_: Any) -> None:
        raise AssertionError("nobody decides by step times")

    bench.engine._scheduler = SpyScheduler(bench.scheduler, refuse)  # type: ignore[assignment]
    bench.engine.add_request("r", "z", params(max_tokens=5))
    assert bench.drain()["r"].error is None
