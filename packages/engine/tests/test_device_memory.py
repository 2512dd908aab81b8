"""The cache of a device takes what the model and the largest steps leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.graphing import GraphingBackend

from thalweg.cache import compute_layout
from thalweg.engine import EngineConfig, LLMEngine, assembly, build_engine
from thalweg.engine.assembly import cache_geometry
from thalweg.engine.drafting import settle_config
from thalweg.engine.loading import load_draft_network, load_model
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.token_counts import token_count_bytes
from thalweg.engine.worst_case import worst_decode, worst_prefill
from thalweg.interfaces import BackendUnavailableError, CapacityError, ConfigError, DeviceMemory
from thalweg.kernels.backends.fifo import LaunchedWorkError
from thalweg.model import ModelConfig, NativeDraftNetwork, NativeModel
from thalweg.scheduler.config import SchedulerConfig

GIB = 1 << 30
OPTIONS: dict[str, Any] = {
    "max_num_seqs": 3,
    "max_model_len": 300,
    "max_num_batched_tokens": 128,
    "chunked_prefill": True,
    "arithmetic": "float32",
    "graphs": False,
    "draft_length": 0,
}


def build(
    monkeypatch: pytest.MonkeyPatch,
    drafting_checkpoint: str,
    memory: DeviceMemory,
    communicator: Any = None,
    **options: Any,
) -> LLMEngine:
    """An engine on a backend whose memory is always this."""

    def load(name: str) -> GraphingBackend:
        backend = GraphingBackend()
        backend.device_memory = memory
        return backend

    monkeypatch.setattr(assembly, "load_backend", load)
    config = EngineConfig.build(environ={}, model=drafting_checkpoint, **(OPTIONS | options))
    return build_engine(config, communicator=communicator)


def num_blocks(engine: LLMEngine) -> int:
    return int(engine._runner.device.pools.blocks.shape[0])  # type: ignore[attr-defined]


def with_room_for(drafting_checkpoint: str, num_blocks: int, **rest: int) -> DeviceMemory:
    """A device whose default share leaves so many blocks, and half a block."""
    facts = ModelConfig.from_file(drafting_checkpoint)
    config = settle_config(EngineConfig.build(environ={}, model=drafting_checkpoint, **OPTIONS), facts)
    layout, num_slots = compute_layout(cache_geometry(facts, config)), int(1.2 * 3) + 1
    cache = int((num_blocks + 0.5) * layout.block_bytes) + num_slots * layout.slot_bytes
    taken = cache + num_slots * token_count_bytes(facts.vocab_size) + GIB + 77
    total = -(-taken * 10 // 9)
    # One GiB at the peak of this process, of which half is left; others have 77 bytes.
    return DeviceMemory(total, total - GIB // 2 - 77, GIB // 2, GIB)


def test_the_cache_gets_the_share_that_nothing_else_takes(
    drafting_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with build(monkeypatch, drafting_checkpoint, with_room_for(drafting_checkpoint, 8)) as engine:
        assert num_blocks(engine) == 8
    plenty = DeviceMemory(64 * GIB, 63 * GIB, GIB, GIB)
    with build(monkeypatch, drafting_checkpoint, plenty) as engine:
        assert num_blocks(engine) == 10, "three blocks for each of three sequences"
    with build(monkeypatch, drafting_checkpoint, plenty, num_blocks=5) as engine:
        assert num_blocks(engine) == 5


class Group:
    """The other rank has less memory."""

    rank, size = 0, 2

    def all_reduce_min(self, values: np.ndarray) -> np.ndarray:
        return np.minimum(values, 6)


def test_the_rank_with_the_least_memory_decides(drafting_checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plenty = DeviceMemory(64 * GIB, 63 * GIB, GIB, GIB)
    with build(monkeypatch, drafting_checkpoint, plenty, communicator=Group()) as engine:
        assert num_blocks(engine) == 6


def test_a_device_that_is_too_small_is_refused_with_what_is_needed(
    drafting_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CapacityError, match="num_blocks is 0; no memory is left for the cache"):
        build(monkeypatch, drafting_checkpoint, DeviceMemory(2 * GIB, 0, 2 * GIB, 2 * GIB))
    with pytest.raises(CapacityError, match="sequences of up to 300 tokens need 3 blocks, 2 are there"):
        build(monkeypatch, drafting_checkpoint, with_room_for(drafting_checkpoint, 2))
    with pytest.raises(CapacityError, match="num_blocks is 90000000; with 4 state slots the cache takes"):
        build(monkeypatch, drafting_checkpoint, DeviceMemory(2 * GIB, GIB, GIB, GIB), num_blocks=90_000_000)


def failing(error: Exception) -> Any:
    """Device work that raises it."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


OUT_OF_MEMORY = torch.OutOfMemoryError("tried to allocate 20 GiB")


@pytest.mark.parametrize("options", [{}, {"num_blocks": 8}], ids=["measured", "given"])
@pytest.mark.parametrize("work", ["forward", "sample", "capture"])
def test_steps_and_graphs_that_do_not_fit_are_refused_with_what_to_lower(
    drafting_checkpoint: str, monkeypatch: pytest.MonkeyPatch, work: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(ModelDevice, work, failing(OUT_OF_MEMORY))
    expected = "largest steps do not fit beside the model: max_num_batched_tokens 128, max_num_seqs 3; lower one"
    with pytest.raises(CapacityError, match=expected):
        build(monkeypatch, drafting_checkpoint, with_room_for(drafting_checkpoint, 8), graphs=True, **options)


def test_weights_that_do_not_fit_are_refused_with_what_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, path = GraphingBackend(), Path("checkpoint")
    backend.device_memory = DeviceMemory(2 * GIB, GIB, GIB, GIB)
    config = EngineConfig.build(environ={}, arithmetic="native")
    for loader in (NativeModel, NativeDraftNetwork):
        monkeypatch.setattr(loader, "load", failing(OUT_OF_MEMORY))
    loads: list[Callable[[], object]] = [
        lambda: load_model(path, config, backend, None, 64),  # type: ignore[arg-type]
        lambda: load_draft_network(path, None, backend),  # type: ignore[arg-type]
    ]
    expected = f"the weights of checkpoint do not fit on cpu, which has {2 * GIB} bytes, {GIB} of them free .tried to"
    for load in loads:
        with pytest.raises(CapacityError, match=expected):
            load()


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("q has heads of 96 columns; 64, 128, ... 512 are accepted"),
        BackendUnavailableError("kernels that no earlier process has built need nvcc"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_kernel_says_of_dimensions_or_of_a_compiler_is_said_at_the_start(
    drafting_checkpoint: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(ModelDevice, "forward", failing(error))
    with pytest.raises(type(error)) as raised:
        build(monkeypatch, drafting_checkpoint, with_room_for(drafting_checkpoint, 8))
    assert raised.value is error


def test_a_fault_of_the_first_steps_stays_what_it_is(drafting_checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelDevice, "forward", failing(ZeroDivisionError("no rows")))
    with pytest.raises(LaunchedWorkError, match="ZeroDivisionError: no rows"):
        build(monkeypatch, drafting_checkpoint, with_room_for(drafting_checkpoint, 8))


def test_the_largest_steps_are_run_before_and_after_the_cache_is_made(
    drafting_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[int, int]] = []
    forward = ModelDevice.forward

    def watched(device: ModelDevice, prepared: Any) -> Any:
        rows.append((prepared.token_ids.shape[0], device.pools.blocks.shape[0]))
        return forward(device, prepared)

    monkeypatch.setattr(ModelDevice, "forward", watched)
    with build(monkeypatch, drafting_checkpoint, with_room_for(drafting_checkpoint, 8)) as engine:
        assert rows[:4] == [(128, 2), (3, 2), (128, 8), (3, 8)]
        assert [prefill for prefill, _ in rows[2::2]] == [128, 64, 32, 16, 8, 4, 2, 1]
        assert [decode for decode, _ in rows[3::2]] == [3, *[1] * 7]
        assert engine.failure is None


def test_the_largest_prefill_fills_the_budget_and_reaches_as_far_as_it_may() -> None:
    scheduler = SchedulerConfig(max_num_seqs=3, max_model_len=1000)
    plan = worst_prefill(scheduler, 400, 128, 4)
    assert plan.query_lengths.tolist() == [134, 133, 133]
    assert plan.context_lengths.tolist() == [1000, 133, 133]
    assert plan.block_offsets.tolist() == [0, 8, 10, 12]
    assert plan.tail_token_ids.shape == (3, 4)
    limited = SchedulerConfig(max_num_seqs=3, max_model_len=1000, prefill_max_sum_seqlen_k=2300)
    assert worst_prefill(limited, 400, 128, 4).context_lengths.tolist() == [1000, 1000, 300]
    lone = worst_prefill(SchedulerConfig(max_num_seqs=8, max_model_len=50), 4, 128, 1)
    assert lone.query_lengths.tolist() == [1, 1, 1, 1]


def test_the_largest_decode_step_verifies_every_draft_at_the_end_of_every_sequence() -> None:
    plan = worst_decode(SchedulerConfig(max_num_seqs=2, max_model_len=1000), 3, 128, 4)
    assert plan.query_lengths.tolist() == [4, 4]
    assert plan.context_lengths.tolist() == [1000, 1000]
    assert plan.committed_lengths.tolist() == [997, 997]
    assert plan.draft_token_ids.shape == (2, 3)
    assert plan.draft_write_slots.tolist() == [1, 2]
