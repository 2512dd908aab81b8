"""How much of a device's memory the model and the largest steps take, measured before there is a cache."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from thalweg.engine.device_maker import DeviceMaker
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.pool_sizes import PoolSizes
from thalweg.engine.runner import StreamRunner
from thalweg.engine.worst_case import BLOCK, STATE_SLOT, costly_rows, worst_decode, worst_prefill
from thalweg.interfaces import (
    Backend,
    BackendUnavailableError,
    CapacityError,
    ConfigError,
    DeviceMemory,
    InvariantError,
)
from thalweg.kernels.backends.fifo import LaunchedWorkError
from thalweg.kernels.reference.bitmask import WORD_BITS
from thalweg.scheduler.config import SchedulerConfig

_LOG = logging.getLogger(__name__)

_NUM_TRIED = 6
"""Graphs that are captured, beyond the largest, to see what one more takes."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes of a device, its cache apart."""

    total_bytes: int
    """Of the device."""
    step_bytes: int
    """At the worst moment of the largest steps: weights, tensors, and whatever others hold."""
    graph_bytes: int
    """What graphs hold beyond that."""


def measure_needs(maker: DeviceMaker, num_tokens: int) -> MemoryNeeds:
    """Run the largest steps over a cache of one block and one state slot. Waits for the device.

    num_tokens: most query tokens of a prefill. Raises as `first_steps` does, CapacityError when a step does not even
    fit without a cache.
    """
    backend = maker.backend
    backend.release_memory()
    with first_steps(maker, num_tokens):
        device = maker.device(1 + BLOCK, 1 + STATE_SLOT)
        _run(maker, device, maker.config.scheduler, num_tokens)
        memory = device_memory(backend)
        graph_bytes = _graph_bytes(maker, device) if maker.has_graphs else 0
        device.close()
    backend.release_memory()
    needs = MemoryNeeds(memory.total_bytes, memory.peak_bytes + _outside(memory), graph_bytes)
    _LOG.info("largest steps take %d MiB, graphs %d MiB more", needs.step_bytes >> 20, graph_bytes >> 20)
    return needs


def needs_of_the_model(backend: Backend) -> MemoryNeeds:
    """What is taken now, and nothing for steps: where the number of blocks is given they get what is left."""
    memory = device_memory(backend)
    return MemoryNeeds(memory.total_bytes, memory.used_bytes + _outside(memory), 0)


def ready_device(maker: DeviceMaker, sizes: PoolSizes, num_tokens: int) -> ModelDevice:
    """The device work of a deployment, with its graphs; on a device of its own every kernel and its memory are there.

    num_tokens: most query tokens of a prefill. Waits for the device. Raises as `first_steps` does.
    """
    with first_steps(maker, num_tokens):
        device = maker.device(sizes.num_blocks, sizes.num_state_slots)
        if maker.has_graphs:
            maker.capture(device, maker.step_sizes, maker.draft_sizes)
        if maker.backend.memory() is not None:
            _warm_up(maker, device, num_tokens)
        return device


@contextmanager
def first_steps(maker: DeviceMaker, num_tokens: int) -> Iterator[None]:
    """What goes wrong in the first steps on a device, as what it says of the deployment.

    Raises CapacityError where memory does not suffice, ConfigError for dimensions that a kernel does not serve, and
    BackendUnavailableError for kernels that cannot be built.
    """
    try:
        yield
    except (torch.OutOfMemoryError, LaunchedWorkError) as error:
        cause = error.__cause__ if isinstance(error, LaunchedWorkError) else error
        if isinstance(cause, (ConfigError, BackendUnavailableError)):
            raise cause from cause.__cause__
        if not isinstance(cause, torch.OutOfMemoryError):
            raise
        raise CapacityError(
            f"the largest steps do not fit beside the model: max_num_batched_tokens {num_tokens}, max_num_seqs "
            f"{maker.config.scheduler.max_num_seqs}; lower one of them, or num_blocks ({cause})"
        ) from error


def _outside(memory: DeviceMemory) -> int:
    """What other processes hold, and what this one does beside tensors."""
    return max(0, memory.total_bytes - memory.free_bytes - memory.used_bytes)


def device_memory(backend: Backend) -> DeviceMemory:
    """The memory of a backend that has one of its own."""
    memory = backend.memory()
    if memory is None:
        raise InvariantError(f"backend {backend.name} has no memory of its own")
    return memory


def _warm_up(maker: DeviceMaker, device: ModelDevice, num_tokens: int) -> None:
    """Run the largest steps, then smaller ones, each of half as many tokens and sequences as the one before.

    They use a block and a slot that nobody has yet. Kernels are chosen by numbers of rows: afterwards those of every
    step have been built, and memory for it is there.
    """
    scheduler, count = maker.config.scheduler, maker.config.scheduler.max_num_seqs
    while num_tokens or count:
        _run(maker, device, replace(scheduler, max_num_seqs=max(count, 1)), max(num_tokens, 1))
        num_tokens, count = num_tokens // 2, count // 2
    _mask_a_row(maker)


def _mask_a_row(maker: DeviceMaker) -> None:
    """What grammars add to a step: the sequences of the largest steps have none."""
    device, vocab_size = maker.backend.device, maker.model.config.vocab_size
    bitmask = torch.full((1, -(-vocab_size // WORD_BITS)), -1, dtype=torch.int32, device=device)
    row = torch.zeros(1, dtype=torch.int64, device=device)
    maker.ops.apply_token_bitmask(torch.zeros(1, vocab_size, device=device), bitmask, row)


def _run(maker: DeviceMaker, device: ModelDevice, scheduler: SchedulerConfig, num_tokens: int) -> None:
    """A prefill and a decode step, sampled."""
    facts, block_size = maker.model.config, maker.geometry.tokens_per_block
    tail_length = facts.engram_max_ngram_size if facts.engram_layer_ids else 1
    runner = StreamRunner(maker.backend, device, maker.inputs())
    for plan in (
        worst_prefill(scheduler, num_tokens, block_size, tail_length),
        worst_decode(scheduler, maker.draft_length, block_size, tail_length),
    ):
        step = runner.launch(plan, None)
        runner.sample(step, None, costly_rows(plan.sequence_ids.size))
        runner.collect(step)


def _graph_bytes(maker: DeviceMaker, device: ModelDevice) -> int:
    """The pool of graphs, as large as the largest one wants it, and what each further one takes."""
    steps, drafts = maker.step_sizes, maker.draft_sizes
    alone, some = (_capture_bytes(maker, device, steps[-count:], drafts[-count:]) for count in (1, 1 + _NUM_TRIED))
    num_more = max(len(steps[-1 - _NUM_TRIED :]), len(drafts[-1 - _NUM_TRIED :])) - 1
    num_left = max(len(steps), len(drafts)) - 1
    return alone + (max(0, some - alone) * num_left // num_more if num_more else 0)


def _capture_bytes(
    maker: DeviceMaker, device: ModelDevice, step_sizes: tuple[int, ...], draft_sizes: tuple[int, ...]
) -> int:
    """What the device lacks while graphs of these sizes exist."""
    backend = maker.backend
    device.release_graphs()
    backend.release_memory()
    before = device_memory(backend).free_bytes
    maker.capture(device, step_sizes, draft_sizes)
    backend.release_memory()
    return max(0, before - device_memory(backend).free_bytes)
