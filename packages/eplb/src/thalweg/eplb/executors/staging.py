"""Where a layer waits for its switch, and the stream on which it is brought there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from thalweg.eplb.executors.live_tables import LiveTables
from thalweg.eplb.transfer import LocalCopy


class SideStream:
    """Work on a device in the order of one thread, beside what the engine has queued; on the host nothing of its own.

    device: of the weights.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = None if device.type == "cpu" else torch.Stream(device)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Queue here what this thread does meanwhile; also makes the device the thread's own, as NCCL asks for."""
        if self._stream is None:
            yield
            return
        with self._stream:
            yield

    def wait_for(self, event: torch.Event | None) -> None:
        """Begin what is queued from now on only after the event; the calling thread goes on."""
        if self._stream is not None and event is not None:
            self._stream.wait_event(event)

    def finish(self) -> None:
        """Wait until all that was queued is done."""
        if self._stream is not None:
            self._stream.synchronize()


class StagedLayer:
    """Room for the experts of a rank in one layer and for the rows of its tables.

    like: the tensors of a layer, [slots, ...] each. tables: of all layers.
    """

    def __init__(self, like: Sequence[torch.Tensor], tables: LiveTables) -> None:
        self.weights = [torch.empty_like(tensor) for tensor in like]
        self.tables = tables.room_for_layer()
        self.free: torch.Event | None = None
        """When the engine's stream has read it and it can be filled again; None: now."""

    def switch(self, slots: Sequence[int], weights: Sequence[torch.Tensor], tables: LiveTables) -> None:
        """Overwrite these slots of the weights and the layer's tables, on the stream that runs the steps."""
        for slot in slots:
            copy_expert(self.weights, weights, LocalCopy(slot, slot))
        tables.copy_from(self.tables)
        self.free = record_event(weights[0].device)


def copy_expert(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], slots: LocalCopy) -> None:
    """Copy what all tensors of a layer have in one slot to another slot, on the current stream."""
    for source, target in zip(sources, targets, strict=True):
        target[slots.target].copy_(source[slots.source])


def record_event(device: torch.device) -> torch.Event | None:
    """When the current stream has done what is queued; None on the host, where it is done."""
    if device.type == "cpu":
        return None
    return torch.accelerator.current_stream(device).record_event()


def wait_for_current_stream(device: torch.device) -> None:
    """Wait until what this thread has queued is done."""
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()
