"""How evenly the router spreads tokens over the experts of each layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from tools.train.evaluate.models import Subject
from tools.train.evaluate.report import Figure
from tools.train.evaluate.runner import token_losses
from tools.train.evaluate.windows import Windows

from thalweg.model import Trace

MEASURE = "routing"


class ExpertLoads(Trace):
    """Counts rows of each layer's experts and keeps nothing else of a pass."""

    __slots__ = ("_num_experts", "loads")

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self._num_experts = num_experts
        self.loads: dict[int, torch.Tensor] = {}
        """By layer, float64 [E] rows of each expert."""

    def record(self, name: str, layer: int, value: torch.Tensor) -> None:
        """Add the experts that a layer chose."""
        if name == "expert_idx":
            counts = torch.bincount(value.flatten(), minlength=self._num_experts).double().cpu()
            self.loads[layer] = self.loads.get(layer, 0) + counts


def measure(subject: Subject, windows: Windows) -> Iterator[Figure]:
    """Of each layer the largest load over the mean load, and the entropy of the loads over that of equal ones."""
    loads = ExpertLoads(subject.config.n_routed_experts)
    token_losses(subject.model("plain"), windows.tokens, subject.device, loads)
    over = windows.description
    for layer, counts in loads.loads.items():
        yield Figure(MEASURE, f"layer {layer}, largest load", skew(counts), "of the mean", over)
        yield Figure(MEASURE, f"layer {layer}, entropy of loads", evenness(counts), "of the most", over)


def skew(counts: torch.Tensor) -> float:
    """Largest over mean load of counts [E]: 1 is even."""
    return float(counts.max() / counts.mean())


def evenness(counts: torch.Tensor) -> float:
    """Entropy of the shares over that of equal shares: 1 is even."""
    return float(torch.special.entr(counts / counts.sum()).sum()) / math.log(len(counts))
