"""Working tensors of a training model, made of single-precision masters, and the pieces that an optimiser steps.

Masters have checkpoint names. The model asks for matrices of one input joined, in blocks, or one by one; every tensor
that it gets is a leaf, and a piece says which master lies in which of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import torch
from tools.train.common.optimiser import Piece, Rule
from torch import Tensor

from thalweg.model.names import TensorSpec
from thalweg.model.weights import Weights

_VECTORS_OR_TABLES = ("embed", "head", "gate", "weights_proj", "q_weight", "k_weight", "proj")
"""Last parts of names of matrices that Muon does not step: tables, and rows that are used one by one."""
_BALANCED = ("gate.bias", "gate.bias_vl")
"""Set by the balance rule of the router, never by a gradient."""
_TABLES = ("embed", "head")
_RATES = {"embed": 2.5, "engram.embed": 5.0, "confidence_head.proj": 0.3}


class MasterWeights(Weights):
    """Working tensors in the dtype of activations, or float32 where a checkpoint has float32."""

    def __init__(
        self, specs: Mapping[str, TensorSpec], masters: Mapping[str, Tensor], activations: torch.dtype
    ) -> None:
        """specs, masters: by checkpoint name, without scales; masters float32, on the device of the model."""
        self.parameters = {}
        self.pieces: list[Piece] = []
        """Everything that gradients step."""
        self.biases: dict[str, Tensor] = {}
        """What the balance rule sets, float32 by checkpoint name."""
        self._specs = specs
        self._masters = masters
        self._activations = activations

    def plain(self, *names: str) -> Tensor:
        if names[0].endswith(_BALANCED):
            self.biases[names[0]] = self._masters[names[0]].clone()
            return self.biases[names[0]]
        return self._join(names, names)

    def fp8(self, *modules: str) -> Tensor:
        return self._join(modules, [f"{module}.weight" for module in modules])

    def fp4(self, *modules: str) -> Tensor:
        return self.fp8(*modules)

    def fp8_blocks(self, module: str, count: int) -> Sequence[Tensor]:
        return _Blocks(self.fp8(module), count)

    def engram_table(self, module: str) -> Tensor:
        return self.fp8(module)

    def _join(self, keys: Sequence[str], names: Sequence[str]) -> Tensor:
        """A new leaf with the masters of these names, one below the other."""
        values = torch.cat([self._masters[name] for name in names])
        is_single = self._specs[names[0]].dtype == "F32"
        leaf = values.to(torch.float32 if is_single else self._activations, copy=True).requires_grad_()
        first = 0
        for name in names:
            rows = self._masters[name].shape[0]
            self.pieces.append(piece_of(self._specs[name], leaf, first, rows))
            first += rows
        self.parameters["+".join(keys)] = leaf
        return leaf


class _Blocks(Sequence[Tensor]):
    """A matrix in equal blocks of rows, cut anew whenever it is read: views of an earlier pass cannot be used again."""

    def __init__(self, matrix: Tensor, count: int) -> None:
        self._matrix = matrix
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        return self._matrix.chunk(self._count)[index]


def piece_of(spec: TensorSpec, leaf: Tensor, first_row: int, num_rows: int) -> Piece:
    """The piece of a checkpoint tensor, with the rule and rate of its kind."""
    module = spec.name.removesuffix(".weight").rsplit(".", 2)
    rate = _RATES.get(".".join(module[-2:]), _RATES.get(module[-1], 1.0))
    is_matrix = len(spec.shape) == 2 and spec.dtype != "F32" and module[-1] not in _VECTORS_OR_TABLES
    rule: Rule = "muon" if is_matrix else "adam"
    return Piece(spec.name, leaf, first_row, num_rows, spec.format, rule, rate, is_table=module[-1] in _TABLES)
