"""A training run: network, optimiser, data and clock together, from the start or from a resume point."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tools.train.backbone.initial import initial_masters
from tools.train.backbone.memory import PassShape
from tools.train.backbone.network import TrainingNetwork
from tools.train.backbone.phases import Phase, Plan
from tools.train.backbone.step import RecordedStep, TrainingStep, study_blocks
from tools.train.common.optimiser import Optimiser, Rates
from tools.train.common.resume import load_resume_point, save_resume_point
from tools.train.common.schedule import Clock
from tools.train.common.windows import TokenWindows
from torch import Tensor

from thalweg.model import ModelConfig, tensor_specs
from thalweg.model.engram_vocabulary import EngramVocabulary

_RATES = Rates(decay=0.1, table_decay=0.05)
"""The corpus is read more than once: without decay the loss of held-out text stays behind."""
_BALANCE = 1e-3
_LATE_BALANCE = 1e-4
_LATE = 0.8
"""Share of the planned time from which router biases move more slowly."""
_AHEAD = 4
"""Steps that the host may run ahead of the device: the clock decides about phases."""


@dataclass(slots=True)
class Progress:
    """What a resume point says beside weights; JSON values only."""

    seed: int
    planned_s: float
    elapsed_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    invocations: int = 0


class Training:
    """All that a run consists of."""

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: EngramVocabulary,
        plan: Plan,
        stream: NDArray[np.uint16],
        evaluation: NDArray[np.uint16],
        progress: Progress,
        device: torch.device,
        masters: Mapping[str, Tensor] | None = None,
        activations: torch.dtype = torch.bfloat16,
    ) -> None:
        """stream: uint16 [N] packed documents; evaluation: uint16 [n, S + 1] fixed windows, their first token BOS.

        masters: of a resume point; None = start anew.
        """
        self.config, self.plan, self.progress, self.device = config, plan, progress, device
        self.clock = Clock(progress.planned_s, progress.elapsed_s)
        self._specs = [spec for spec in tensor_specs(config) if not spec.is_scale]
        self._masters = initial_masters(self._specs, config.hc_mult, progress.seed) if masters is None else masters
        self.network = TrainingNetwork(config, vocabulary, self._masters, device, activations)
        masters_on_device = {name: value.to(device) for name, value in self._masters.items()}
        self.optimiser = Optimiser(self.network.weights.pieces, masters_on_device, _RATES)
        self.windows = TokenWindows(stream, progress.seed, device)
        self.step = TrainingStep(self.network, self.optimiser, device)
        self.recorded = RecordedStep(self.step) if device.type == "cuda" else None
        self._evaluation = torch.from_numpy(evaluation.astype(np.int64)).to(device)
        self._steps_since_start = 0
        self._ends: list[torch.cuda.Event] = []

    def warm(self) -> None:
        """Run every pass to come once at rate 0: compiles functions, and leaves masters and biases as they are."""
        self.optimiser.rate.zero_()
        self.step.balance.zero_()
        for shape in self.plan.shapes(self.clock.progress):
            self.run_step(self.step, shape, 0)
        self.mean_losses()

    def advance(self) -> Phase:
        """One step of the phase that the clock says."""
        progress = self.clock.progress
        phase = self.plan.at(progress)
        if phase.is_quantised > self.optimiser.is_quantised or phase.is_averaged > self.optimiser.is_averaging:
            self._enter(phase)
        self.optimiser.rate.fill_(self.plan.rates.rate(progress, self.progress.steps, self._steps_since_start))
        self.step.balance.fill_(_BALANCE if progress < _LATE else _LATE_BALANCE)
        shape = phase.shapes[self.progress.steps % len(phase.shapes)]
        self.run_step(self.step if self.recorded is None else self.recorded, shape, self.progress.steps)
        self.progress.steps += 1
        self.progress.tokens += shape.batch * shape.length
        self._steps_since_start += 1
        self._wait()
        return phase

    def run_step(self, step: TrainingStep | RecordedStep, shape: PassShape, number: int) -> None:
        """One step of a given pass, with the windows of step `number`."""
        windows = self.windows.draw(shape.batch, shape.length, number)
        seed, window = self.progress.seed, self.config.sliding_window
        step(windows, shape, study_blocks(shape, window, seed, number, self.device))

    def _enter(self, phase: Phase) -> None:
        """Let the optimiser do what a phase asks for and those before it did not."""
        self.optimiser.is_quantised = phase.is_quantised
        self.optimiser.write()
        if phase.is_averaged:
            self.optimiser.start_averaging()
        if self.recorded is not None:
            self.recorded.forget()

    def _wait(self) -> None:
        """Let the host be only a few steps ahead."""
        if self.device.type != "cuda":
            return
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record()
        self._ends.append(end)
        if len(self._ends) > _AHEAD:
            self._ends.pop(0).synchronize()

    def mean_losses(self) -> dict[int, tuple[float, float]]:
        """Mean language and indexer losses since the last call, by length of the windows."""
        means = {}
        for length, totals in sorted(self.step.totals.items()):
            language, indexing, steps = totals.tolist()
            totals.zero_()
            if steps:
                means[length] = (language / steps, indexing / steps)
        return means

    def held_out_loss(self) -> tuple[float, int]:
        """Mean nats per token over the fixed windows, and how many windows that are: whole batches only.

        Gradients stay on: without them everything would be compiled a second time.
        """
        phase = self.plan.at(self.clock.progress)
        like = phase.shapes[0]
        shape = PassShape(like.batch, self._evaluation.shape[1] - 1, like.is_sparse, dense_entries=like.dense_entries)
        sums = []
        for first in range(0, len(self._evaluation) - shape.batch + 1, shape.batch):
            losses = self.network.losses(self._evaluation[first : first + shape.batch], shape)
            sums.append(losses.tokens.detach().mean())
        return float(torch.stack(sums).mean()), len(sums) * shape.batch

    def masters(self) -> dict[str, Tensor]:
        """All masters of the checkpoint, float32: those that were stepped, balanced biases, and what never changes.

        At the end of the planned time those that were stepped are the averages.
        """
        stepped = self.optimiser.masters() if self.clock.progress < 1 else self.optimiser.averages()
        masters = {**self._masters, **stepped, **self.network.weights.biases}
        for name in self.network.weights.biases:
            if name.endswith("gate.bias"):
                masters[f"{name}_vl"] = masters[name].clone()
        return masters

    def save(self, directory: Path) -> None:
        """Write a resume point: bfloat16, and float32 what a checkpoint has in float32."""
        masters = self.masters()
        dtypes = {spec.name: torch.float32 if spec.dtype == "F32" else torch.bfloat16 for spec in self._specs}
        self.progress.elapsed_s = self.clock.elapsed_s
        stored = {name: masters[name].to(dtype) for name, dtype in dtypes.items()}
        save_resume_point(directory, stored, {name: getattr(self.progress, name) for name in Progress.__slots__})


def load_training_point(directory: Path) -> tuple[dict[str, Tensor], Progress]:
    """Masters, float32, and progress of a resume point."""
    tensors, progress = load_resume_point(directory)
    return {name: tensor.float() for name, tensor in tensors.items()}, Progress(**progress)


class Log:
    """JSON lines, one per event, also printed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 1), **values})
        self._file.write(line + "\n")
        self._file.flush()
        print(line, flush=True)
