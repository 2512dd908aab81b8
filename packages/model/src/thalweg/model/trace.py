"""Intermediate values of a forward pass, recorded on request for tests and for locating differences."""

from __future__ import annotations

import torch


class Trace:
    """Collects named tensors per layer: `trace["topk", 4]`. Layer -1 holds values of the whole model."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], torch.Tensor] = {}

    def record(self, name: str, layer: int, value: torch.Tensor) -> None:
        """Keep a value; a later one of the same name and layer replaces it."""
        self.values[name, layer] = value.detach()

    def __getitem__(self, key: tuple[str, int]) -> torch.Tensor:
        return self.values[key]

    def __contains__(self, key: object) -> bool:
        return key in self.values
