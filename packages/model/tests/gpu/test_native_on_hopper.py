"""The native model on a Hopper GPU: every op beside the CPU's, whole passes, and decode steps as graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from model_testing.draft_session import RecordingSampler
from model_testing.shadow import ShadowOps

from thalweg.kernels import BoundOps, bind
from thalweg.model import CachedDrafter, Model, NativeDraftNetwork, NativeModel

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

NUM_POSITIONS = 512
NUM_TOKENS = 330
"""More than all candidate blocks hold, so that restricted selections leave entries out."""


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(5, 512, (NUM_TOKENS,), generator=torch.Generator().manual_seed(2))


def test_every_op_of_prefill_decode_and_drafting_equals_the_cpus(
    hopper: torch.device, small_checkpoint: Path, tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    ops = ShadowOps(bind("cpu"), bind("sm90"), hopper)
    model = NativeModel.load(small_checkpoint, cast("BoundOps", ops), num_positions=NUM_POSITIONS)
    network = NativeDraftNetwork.load(small_checkpoint, model)
    cache = make_cache(model, num_blocks=40, block_tokens=32)
    cache.drafter = CachedDrafter(network, cache.views, 3, (1.0, 0.7, 2.0))
    group = [cache.add(tokens), cache.add(tokens[40:140])]
    cache.prefill([(group[0], 310), (group[1], 1)])
    cache.prefill([(group[1], 80), (group[0], 9)])
    cache.decode([(group[0], 2), (group[1], 3)], placeholders=2)
    cache.decode([(group[1], 1), (group[0], 1)])
    cache.propose(group, [int(running.tokens[running.done]) for running in group], RecordingSampler(1))
    assert not ops.differences, "\n".join(map(str, ops.differences))


def test_a_pass_is_no_more_than_twice_as_far_from_exact_arithmetic_as_the_cpus(
    hopper: torch.device, small_checkpoint: Path, tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    (exact,) = Model.load(small_checkpoint).forward_sequences([tokens])
    on_cpu = NativeModel.load(small_checkpoint, num_positions=NUM_POSITIONS)
    on_gpu = NativeModel.load(small_checkpoint, bind("sm90"), device=hopper, num_positions=NUM_POSITIONS)
    errors = []
    for model in (on_cpu, on_gpu):
        cache = make_cache(model, num_blocks=40, block_tokens=32)
        running = cache.add(tokens)
        cache.prefill([(running, 320)])
        while running.done < NUM_TOKENS:
            cache.decode([(running, 1)])
        logits = torch.stack([running.logits[position] for position in range(NUM_TOKENS)])
        errors.append(float((logits - exact).norm() / exact.norm()))
    # Random layers blow up every last bit, and tensor cores keep fewer of them than float32: a factor of 1.5 was found.
    # Logits that had nothing to do with each other would be 1.4 apart.
    assert errors[1] < 2 * errors[0] < 1, errors


@pytest.mark.parametrize("placeholders", [0, 3])
def test_a_replayed_decode_step_equals_the_eager_one_and_reads_nothing_back(
    placeholders: int,
    hopper: torch.device,
    small_checkpoint: Path,
    tokens: torch.Tensor,
    make_cache: Callable[..., Any],
) -> None:
    model = NativeModel.load(small_checkpoint, bind("sm90"), device=hopper, num_positions=NUM_POSITIONS)
    cache = make_cache(model, num_blocks=40, block_tokens=32)
    group = [cache.add(tokens), cache.add(tokens[40:140])]
    cache.prefill([(group[0], 310), (group[1], 65)])
    batch, metadata = cache.decode_inputs([(group[0], 2), (group[1], 1)], placeholders)

    def step() -> torch.Tensor:
        memory = model.paged_memory(cache.views, metadata, batch.positions)
        return model.logits(model.forward(batch, memory))

    eager = step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(again, eager)
    assert torch.equal(captured, eager)
    assert bool(eager[:3].isfinite().all())


def test_a_prefill_reads_nothing_back(
    hopper: torch.device, small_checkpoint: Path, tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    model = NativeModel.load(small_checkpoint, bind("sm90"), device=hopper, num_positions=NUM_POSITIONS)
    cache = make_cache(model, num_blocks=40, block_tokens=32)
    group = [cache.add(tokens), cache.add(tokens[40:140])]
    cache.prefill([(group[0], 100)])
    batch, metadata = cache.prefill_inputs([(group[0], 200), (group[1], 1)])
    model.forward(batch, model.paged_memory(cache.views, metadata, batch.positions))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model.forward(batch, model.paged_memory(cache.views, metadata, batch.positions))
    finally:
        torch.cuda.set_sync_debug_mode("default")
