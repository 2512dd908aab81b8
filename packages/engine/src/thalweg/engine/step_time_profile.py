"""How long a forward pass takes by its number of query tokens, measured before the first request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import torch

from thalweg.dspark import StepTimeCurve
from thalweg.engine.device import Device
from thalweg.engine.inputs import InputBuilder, StepInputs
from thalweg.interfaces import Backend

_LOG = logging.getLogger(__name__)

NUM_TIMED = 5
"""Timed passes per size, after one that is not; the fastest and the slowest are left out of the mean."""


def profile_sizes(max_tokens: int) -> tuple[int, ...]:
    """Sizes at which passes are timed where no graphs are captured: powers of two, and the largest."""
    return (*(1 << power for power in range((max_tokens - 1).bit_length())), max_tokens)


def measure_step_times(
    backend: Backend,
    device: Device,
    inputs: InputBuilder,
    sizes: Iterable[int],
    *,
    draft_length: int,
    vocab_size: int,
) -> StepTimeCurve:
    """The curve at these sizes, the largest measured first. Waits for the device."""
    stream = backend.stream()
    points: list[tuple[int, float]] = []
    started = time.perf_counter()
    for size in sorted(sizes, reverse=True):
        work = _timed_pass(device, inputs.dummy(size, draft_length, vocab_size))
        launched = [stream.launch(work) for _ in range(1 + NUM_TIMED)]
        stream.record().wait()
        times = sorted(each.value for each in launched[1:])[1:-1]
        points.append((size, 1000 * sum(times) / len(times)))
    _LOG.info("measured %d step times in %.1f s", len(points), time.perf_counter() - started)
    return StepTimeCurve(points[::-1])


def _timed_pass(device: Device, inputs: StepInputs) -> Callable[[], float]:
    def timed_pass() -> float:
        with torch.inference_mode():
            prepared = device.prepare(inputs, None, redistribute=False)
            started = time.perf_counter()
            device.forward(prepared)
            return time.perf_counter() - started

    return timed_pass
