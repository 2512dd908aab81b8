"""The first steps on a device: the largest there can be, run before requests come, and what they say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from thalweg.engine.device_maker import DeviceMaker, tail_length
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.pool_sizes import PoolSizes
from thalweg.engine.runner import StreamRunner
from thalweg.engine.worst_case import costly_rows, worst_decode, worst_prefill
from thalweg.interfaces import BackendUnavailableError, CapacityError, ConfigError
from thalweg.kernels.backends.fifo import LaunchedWorkError
from thalweg.kernels.reference.bitmask import WORD_BITS
from thalweg.scheduler.config import SchedulerConfig


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


def run_largest(maker: DeviceMaker, device: ModelDevice, scheduler: SchedulerConfig, num_tokens: int) -> None:
    """The largest prefill of so many query tokens, and the largest decode step; sampled and waited for."""
    block_size, num_tail = maker.geometry.tokens_per_block, tail_length(maker.model.config)
    runner = StreamRunner(maker.backend, device, maker.inputs())
    for plan in (
        worst_prefill(scheduler, num_tokens, block_size, num_tail),
        worst_decode(scheduler, maker.draft_length, block_size, num_tail),
    ):
        step = runner.launch(plan, None)
        runner.sample(step, None, costly_rows(plan.sequence_ids.size))
        runner.collect(step)


def _warm_up(maker: DeviceMaker, device: ModelDevice, num_tokens: int) -> None:
    """Run the largest steps, then smaller ones, each of half as many tokens and sequences as the one before.

    They use a block and a slot that nobody has yet. Kernels are chosen by numbers of rows: afterwards those of every
    step have been built, and memory for it is there.
    """
    scheduler, count = maker.config.scheduler, maker.config.scheduler.max_num_seqs
    while num_tokens or count:
        run_largest(maker, device, replace(scheduler, max_num_seqs=max(count, 1)), max(num_tokens, 1))
        num_tokens, count = num_tokens // 2, count // 2
    _mask_a_row(maker)


def _mask_a_row(maker: DeviceMaker) -> None:
    """What grammars add to a step: the sequences of the largest steps have none."""
    device, vocab_size = maker.backend.device, maker.model.config.vocab_size
    bitmask = torch.full((1, -(-vocab_size // WORD_BITS)), -1, dtype=torch.int32, device=device)
    row = torch.zeros(1, dtype=torch.int64, device=device)
    maker.ops.apply_token_bitmask(torch.zeros(1, vocab_size, device=device), bitmask, row)
