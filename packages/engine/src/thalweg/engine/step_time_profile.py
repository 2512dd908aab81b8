"""How long a forward pass takes by its number of query tokens, measured before the first request."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import torch

from thalweg.dspark import StepTimeCurve
from thalweg.engine.device import Device
from thalweg.engine.inputs import InputBuilder, StepInputs
from thalweg.interfaces import Backend
from thalweg.interfaces.backend import Stream, Timing

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
        with torch.inference_mode():
            timings = _passes(stream, device, inputs.dummy(size, draft_length, vocab_size))
        stream.record().wait()
        spans = [timing.span_ns for timing in timings]
        times = sorted(ended - started for started, ended in spans[1:])[1:-1]
        points.append((size, sum(times) / len(times) / 1e6))
    _LOG.info("measured %d step times in %.1f s", len(points), time.perf_counter() - started)
    return StepTimeCurve(points[::-1])


def _passes(stream: Stream, device: Device, inputs: StepInputs) -> list[Timing]:
    """Queue the passes; when each of them runs."""
    prepared = stream.launch(lambda: device.prepare(inputs, None, redistribute=False))

    def forward() -> None:
        device.forward(prepared.value)

    return [stream.launch(forward).timing for _ in range(1 + NUM_TIMED)]
