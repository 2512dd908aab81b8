"""How much of a device's memory the model and the largest steps take, measured before there is a cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from thalweg.engine.device_maker import DeviceMaker
from thalweg.engine.first_steps import first_steps, run_largest
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.worst_case import BLOCK, STATE_SLOT
from thalweg.interfaces import Backend, DeviceMemory, InvariantError

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
        run_largest(maker, device, maker.config.scheduler, num_tokens)
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


def _outside(memory: DeviceMemory) -> int:
    """What other processes hold, and what this one does beside tensors."""
    return max(0, memory.total_bytes - memory.free_bytes - memory.used_bytes)


def device_memory(backend: Backend) -> DeviceMemory:
    """The memory of a backend that has one of its own."""
    memory = backend.memory()
    if memory is None:
        raise InvariantError(f"backend {backend.name} has no memory of its own")
    return memory


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
