"""What a drafter reads of the target model: the residual trunk that enters the attention of a few layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from thalweg.interfaces import ConfigError
from thalweg.model.numerics import Numerics


class TargetFeatures:
    """Collects the features of one forward pass; make a new one for every pass."""

    __slots__ = ("_rows", "layer_ids")

    def __init__(self, layer_ids: Sequence[int]) -> None:
        self.layer_ids = tuple(layer_ids)
        self._rows: dict[int, torch.Tensor] = {}

    def take(self, layer: int, trunk: torch.Tensor, numerics: Numerics) -> None:
        """Keep the mean over streams of the trunk [T, m, h] that a layer's attention is about to read."""
        if layer in self.layer_ids:
            self.put(layer, numerics.bf16(numerics.ops.target_feature(trunk)))

    def put(self, layer: int, rows: torch.Tensor) -> None:
        """Keep the feature rows [T, h] of one of `layer_ids`."""
        self._rows[layer] = rows

    def keep(self, kept: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """From now on have only some of the rows."""
        self._rows = {layer: kept(rows) for layer, rows in self._rows.items()}

    def joined(self) -> torch.Tensor:
        """[T, L * h] in the carrier dtype, layers in the order of `layer_ids`.

        Raises ConfigError when the pass had no such layer.
        """
        missing = [layer for layer in self.layer_ids if layer not in self._rows]
        if missing or not self._rows:
            raise ConfigError(f"layer_ids is {list(self.layer_ids)}; no forward pass has reached layers {missing}")
        return torch.cat([self._rows[layer] for layer in self.layer_ids], dim=-1)
