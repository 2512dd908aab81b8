"""One training step: windows in, updated masters out; nothing is read back on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tools.train.backbone.memory import PassShape
from tools.train.backbone.network import TrainingNetwork
from tools.train.common.optimiser import Optimiser
from torch import Tensor


class TrainingStep:
    """Losses, gradients, optimiser and router balance of a network."""

    def __init__(self, network: TrainingNetwork, optimiser: Optimiser, device: torch.device) -> None:
        self._network = network
        self._optimiser = optimiser
        self._leaves = list(network.model.parameters.values())
        self.balance = torch.zeros((), device=device)
        """float32 []: how far a router bias moves in one step; set it before the first."""
        self.totals: dict[int, Tensor] = {}
        """By length of the windows, float32 [3]: sums over steps of language losses, indexers' mean losses and 1."""

    def __call__(self, windows: Tensor, shape: PassShape, blocks: Tensor | None) -> None:
        """windows: int64 [B, S + 1]; blocks: as of `TrainingMemory`."""
        for leaf in self._leaves:
            leaf.grad = None
        losses = self._network.losses(windows, shape, blocks)
        language = losses.tokens.mean()
        indexing = torch.stack(losses.indexers).sum() if losses.indexers else torch.zeros_like(language)
        (language + indexing).backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        with torch.no_grad():
            for bias, load in losses.loads:
                bias.add_(self.balance * torch.sign(load.mean() - load))
            sums = torch.stack([language, indexing / max(len(losses.indexers), 1), torch.ones_like(language)])
            # Made by the first step of a length, which is never a recorded one.
            self.totals.setdefault(shape.length, torch.zeros_like(sums)).add_(sums)


@dataclass(slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    windows: Tensor
    blocks: Tensor | None


class RecordedStep:
    """A step replayed as one CUDA graph per pass shape, recorded on first use: it must have run as it is before.

    A recording holds for the state of the optimiser in which it was made: call `forget` when weights become quantised.
    All recordings share their memory, as nothing in it outlives a step.
    """

    def __init__(self, step: TrainingStep) -> None:
        self._step = step
        self._recordings: dict[PassShape, _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def forget(self) -> None:
        """Drop all recordings and their memory."""
        self._recordings.clear()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, windows: Tensor, shape: PassShape, blocks: Tensor | None) -> None:
        """As of `TrainingStep`."""
        if shape not in self._recordings:
            self._recordings[shape] = self._record(windows, shape, blocks)
        recording = self._recordings[shape]
        recording.windows.copy_(windows)
        if recording.blocks is not None and blocks is not None:
            recording.blocks.copy_(blocks)
        recording.graph.replay()

    def _record(self, windows: Tensor, shape: PassShape, blocks: Tensor | None) -> _Recording:
        windows, blocks = windows.clone(), None if blocks is None else blocks.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(windows, shape, blocks)
        return _Recording(graph, windows, blocks)


def study_blocks(shape: PassShape, window: int, seed: int, step: int, device: torch.device) -> Tensor | None:
    """int64 [study_blocks] blocks of W rows, one out of each equal part of a window; None where indexers rest."""
    if shape.study_blocks == 0:
        return None
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    part = shape.length // window // shape.study_blocks
    drawn = torch.randint(part, (shape.study_blocks,), generator=generator)
    return (torch.arange(shape.study_blocks) * part + drawn).to(device)
