"""Going from one placement to another while steps run: layer by layer, each in one switch that all ranks make."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np
import torch

from thalweg.eplb.background import run_in_background
from thalweg.eplb.executors.live_tables import LiveTables
from thalweg.eplb.executors.staging import SideStream, StagedLayer, copy_expert, record_event
from thalweg.eplb.placement import Placement, check_placement, check_same_shape
from thalweg.eplb.transfer import LayerTransfers, plan_transfers
from thalweg.interfaces import Communicator, ConfigError, InvariantError, PeerDiedError, ThalwegError

_NUM_STAGED = 2
"""One layer is being staged while the one before it waits for the switch."""


class Transport(Protocol):
    """Brings experts from other ranks; called from one thread, for the same layers in the same order on all ranks."""

    def fetch(self, plan: LayerTransfers, weights: Sequence[torch.Tensor], staging: Sequence[torch.Tensor]) -> None:
        """Fill the slots of `staging` that the plan's rounds bring to this rank, and serve the others from `weights`.

        weights, staging: the tensors of a layer, [slots, ...] each. Returns when others need `weights` no more and what
        `staging` gets is there or queued on the current stream; raises PeerDiedError when a peer does not do its part.
        """


class Rearranger:
    """Moves the experts of one rank.

    A thread stages the experts of a layer beside the weights; once all ranks have done so they switch, between two
    steps, weights and tables of the layer together. What was not switched is as it was, so whatever goes wrong before,
    every layer has weights and tables that fit.
    weights: per layer the tensors of its experts, [slots of this rank, ...] each and contiguous; all layers alike.
    communicator: of all expert-parallel ranks, in the engine's thread.
    """

    def __init__(
        self,
        weights: Sequence[Sequence[torch.Tensor]],
        placement: Placement,
        transport: Transport,
        communicator: Communicator,
    ) -> None:
        check_placement("placement", placement)
        _check_weights(weights, placement)
        if communicator.size != placement.num_ranks:
            raise ConfigError(
                f"the placement is for {placement.num_ranks} ranks; the communicator has {communicator.size}"
            )
        self._weights = weights
        self._placement = placement
        self._transport = transport
        self._communicator = communicator
        self.tables = LiveTables.of(placement, weights[0][0].device)
        self._staged = [StagedLayer(weights[0], self.tables) for _ in range(_NUM_STAGED)]
        self._device = weights[0][0].device
        self._stream = SideStream(self._device)
        self._target = placement
        self._layers: list[int] = []
        self._plans: list[LayerTransfers] = []
        self._num_switched = 0
        self._num_staged = 0
        self._room = threading.Semaphore()
        self._staging: Future[None] | None = None
        self._end: ThalwegError | None = None
        """Why no more layers move: a rank was lost, or nobody wants it."""

    @property
    def placement(self) -> Placement:
        """Where experts are now."""
        return self._placement

    @property
    def expert_bytes(self) -> int:
        """Of all weights of one expert in one layer."""
        return sum(tensor[0].nbytes for tensor in self._weights[0])

    @property
    def is_moving(self) -> bool:
        """Whether `advance` has something to do; the same on all ranks."""
        return self._staging is not None

    def start(self, target: Placement) -> None:
        """Begin to move; all ranks do so in the same step and with the same target. Layers that stay cost nothing.

        Raises ConfigError for a target of another shape, InvariantError while experts are moving or after `close`, and
        what `advance` raised if a rank was lost.
        """
        if self._end is not None:
            raise self._end
        if self._staging is not None:
            raise InvariantError("experts are moving; the next rearrangement can start when that has ended")
        check_same_shape(placement=self._placement, target=target)
        changed = (self._placement.logical_of_physical != target.logical_of_physical).any(axis=1)
        self._layers, self._plans = np.flatnonzero(changed).tolist(), []
        self._target = target
        self._num_switched = self._num_staged = 0
        self._room = threading.Semaphore(_NUM_STAGED)
        if self._layers:
            old, queued = self._placement, record_event(self._device)
            self._staging = run_in_background(lambda: self._stage_all(old, target, queued))

    def advance(self) -> list[int]:
        """Switch the layers that all ranks have staged, and return them; called by all ranks between two steps.

        Raises PeerDiedError, on every rank that is left and naming the lost one, when a transfer was not completed or a
        rank is gone. Then no more layers move, those that have not switched are as before, and every call raises again.
        InvariantError after `close`.
        """
        if self._end is not None:
            raise self._end
        if self._staging is None:
            return []
        try:
            agreed = self._agree(self._staging)
        except PeerDiedError as error:
            self._end_with(error)
            raise
        switched = self._layers[self._num_switched : agreed]
        for index, layer in enumerate(switched, self._num_switched):
            slots = self._plans[index].changed_slots(self._communicator.rank)
            staged = self._staged[index % _NUM_STAGED]
            staged.switch(slots, self._weights[layer], self.tables.layer(layer))
        self._num_switched = agreed
        if switched:
            chosen = np.isin(np.arange(self._placement.num_layers), switched)
            self._placement = self._placement.with_layers(self._target, chosen)
            self._room.release(len(switched))
        if agreed == len(self._layers):
            self._staging = None
        return switched

    def close(self) -> None:
        """Move no more layers, for instance because the engine ends; may be called again.

        Does not wait for the thread that stages them: it ends after the transfers of the layer that it is at, at the
        latest when the transport gives up on them. Ranks that go on count this one as lost.
        """
        if self._end is None:
            self._end_with(InvariantError("this rearranger was closed; no more experts move"))

    def _end_with(self, reason: ThalwegError) -> None:
        """Let every later call raise the reason, and the staging thread end, which may wait for a switch."""
        self._end = reason
        self._room.release()

    def _agree(self, staging: Future[None]) -> int:
        """How many layers all ranks have staged. Raises PeerDiedError if some rank cannot stage another."""
        error = staging.exception() if staging.done() else None
        nobody = lost = self._communicator.size
        if error is not None:
            lost = min(getattr(error, "ranks", ()), default=self._communicator.rank)
        answer = self._communicator.all_reduce_min(np.array([self._num_staged, lost], np.int32))
        num_staged, first_lost = answer.tolist()
        if first_lost == nobody:
            return int(num_staged)
        text = f"rank {first_lost} was lost while experts moved; {len(self._layers) - self._num_switched} layers stay"
        raise PeerDiedError(f"{text}: {error or 'as another rank found'}", (first_lost,)) from error

    def _stage_all(self, old: Placement, new: Placement, queued: torch.Event | None) -> None:
        """Stage one layer after another. queued: when earlier switches have written the weights that are read here."""
        with self._stream.entered():
            self._stream.wait_for(queued)
            tables = LiveTables.of(new, self._device)
            for index, layer in enumerate(self._layers):
                plan = plan_transfers(old.logical_of_physical[layer], new.logical_of_physical[layer], new.num_ranks)
                self._plans.append(plan)
                self._room.acquire()
                if self._end is not None:
                    return
                staged = self._staged[index % _NUM_STAGED]
                self._stream.wait_for(staged.free)
                self._stage(plan, self._weights[layer], staged.weights)
                staged.tables.copy_from(tables.layer(layer))
                self._stream.finish()
                self._num_staged = index + 1

    def _stage(self, plan: LayerTransfers, weights: Sequence[torch.Tensor], staging: Sequence[torch.Tensor]) -> None:
        for slots in plan.local_copies[self._communicator.rank]:
            copy_expert(weights, staging, slots)
        self._transport.fetch(plan, weights, staging)
        for slots in plan.duplicates[self._communicator.rank]:
            copy_expert(staging, staging, slots)


def _check_weights(weights: Sequence[Sequence[torch.Tensor]], placement: Placement) -> None:
    if len(weights) != placement.num_layers or not weights[0]:
        raise ConfigError(
            f"weights has {len(weights)} layers; the placement has {placement.num_layers}, with tensors each"
        )
    kinds = [[(tensor.shape, tensor.dtype, tensor.device) for tensor in layer] for layer in weights]
    for layer, tensors in enumerate(weights):
        if kinds[layer] != kinds[0]:
            raise ConfigError(f"the tensors of layer {layer} differ from those of layer 0; all layers must be alike")
        for index, tensor in enumerate(tensors):
            if tensor.ndim < 1 or len(tensor) != placement.slots_per_rank or not tensor.is_contiguous():
                raise ConfigError(
                    f"tensor {index} of layer {layer} is {tuple(tensor.shape)}; it must be contiguous,"
                    f" [{placement.slots_per_rank} slots, ...]"
                )
