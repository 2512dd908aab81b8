"""Muon for matrices and AdamW for everything else, over single-precision masters of the model's working tensors.

A model computes with working tensors (bfloat16 mostly, several checkpoint matrices joined in one). What is optimised
are pieces of them, one per checkpoint tensor. Pieces of one shape and rule are stacked, so that a step is a few batched
products however many experts there are. A step reads nothing back and can be recorded in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from tools.train.common.quantise import fake_quantise
from torch import Tensor

from thalweg.model.names import Format

Rule = Literal["muon", "adam"]

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic that drives all singular values towards 1 in five steps (Jordan 2024, "Muon")."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One checkpoint tensor inside a working tensor."""

    name: str
    """Checkpoint name, `.weight` included."""
    leaf: Tensor
    """The working tensor, a leaf that collects gradients."""
    first_row: int
    num_rows: int
    format: Format
    rule: Rule
    rate: float = 1.0
    """Multiplier of the rule's learning rate."""
    is_table: bool = False
    """Whether single tokens or n-grams use single rows."""

    def value(self) -> Tensor:
        """The view of the working tensor."""
        return self.leaf.detach().narrow(0, self.first_row, self.num_rows)

    def gradient(self) -> Tensor:
        """The view of its gradient; zeros where no path led to the tensor."""
        if self.leaf.grad is None:
            return torch.zeros_like(self.value())
        return self.leaf.grad.narrow(0, self.first_row, self.num_rows)


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates and constants; small_model.md 5."""

    muon: float = 6e-3
    adam: float = 3e-3
    momentum: float = 0.95
    decay: float = 0.05
    """Decoupled, of Muon's matrices."""
    table_decay: float = 0.0
    """Decoupled, of tables."""
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-10


class Optimiser:
    """Steps masters along the gradients of the working tensors, and writes the working tensors anew."""

    def __init__(self, pieces: Iterable[Piece], masters: Mapping[str, Tensor], rates: Rates | None = None) -> None:
        """masters: float32 values by name, copied. The working tensors are written at once."""
        self._rates = Rates() if rates is None else rates
        stacks: dict[tuple[object, ...], list[Piece]] = {}
        for piece in pieces:
            shape = tuple(piece.value().shape)
            key = (piece.rule, piece.rate, piece.is_table, piece.format, shape, piece.leaf.dtype)
            stacks.setdefault(key, []).append(piece)
        self._groups = [_Group(group, masters, self._rates) for group in stacks.values()]
        device = self._groups[0].master.device
        self.rate = torch.zeros((), device=device)
        """float32 []: the schedule's multiplier of all learning rates; set it before every step."""
        self._steps = torch.zeros((), device=device)
        self.is_quantised = False
        """Whether working tensors hold values that the checkpoint formats can store."""
        self.is_averaging = False
        """Whether means of the masters are kept."""
        self._averaged = torch.zeros((), device=device)
        self.write()

    def start_averaging(self) -> None:
        """From now on, keep the mean of the masters over steps."""
        for group in self._groups:
            group.average = group.master.clone()
        self.is_averaging = True

    @torch.no_grad()
    def step(self) -> None:
        """One update of all masters, and the working tensors that follow from them."""
        self._steps += 1
        for group in self._groups:
            group.update(self.rate, self._steps)
        if self.is_averaging:
            self._average()
        self.write()

    def _average(self) -> None:
        self._averaged += 1
        for group in self._groups:
            group.average.lerp_(group.master, 1 / (1 + self._averaged))

    @torch.no_grad()
    def write(self) -> None:
        """Write the working tensors: masters, or what the checkpoint formats make of them."""
        for group in self._groups:
            group.write(group.master, self.is_quantised)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the working tensors follow from the means, not from the masters."""
        with torch.no_grad():
            for group in self._groups:
                group.write(group.average, self.is_quantised)
        try:
            yield
        finally:
            self.write()

    def masters(self) -> dict[str, Tensor]:
        """float32 views by checkpoint name."""
        return {name: value for group in self._groups for name, value in group.named(group.master)}

    def averages(self) -> dict[str, Tensor]:
        """As `masters`, of what `start_averaging` keeps."""
        return {name: value for group in self._groups for name, value in group.named(group.average)}


class _Group:
    """Pieces of one shape, storage format and rule."""

    def __init__(self, pieces: list[Piece], masters: Mapping[str, Tensor], rates: Rates) -> None:
        self.pieces = pieces
        self.master = torch.stack([masters[piece.name].detach().float() for piece in pieces])
        """[N, ...]"""
        self.average = self.master
        """[N, ...], the masters themselves until they are averaged."""
        self._rates = rates
        self._first = torch.zeros_like(self.master)
        self._second = torch.zeros_like(self.master) if pieces[0].rule == "adam" else None

    def update(self, rate: Tensor, steps: Tensor) -> None:
        gradient = torch.stack([piece.gradient() for piece in self.pieces]).float()
        if self._second is None:
            self._muon(gradient, rate)
        else:
            self._adam(gradient, self._second, rate, steps)

    def _muon(self, gradient: Tensor, rate: Tensor) -> None:
        rates = self._rates
        self._first.mul_(rates.momentum).add_(gradient)
        direction = orthogonalised(gradient.add_(self._first, alpha=rates.momentum))
        lr = rate * (rates.muon * self.pieces[0].rate)
        scale = 0.2 * max(self.master.shape[-2:]) ** 0.5
        self.master.mul_(1 - lr * rates.decay).sub_(direction.float() * (lr * scale))

    def _adam(self, gradient: Tensor, second: Tensor, rate: Tensor, steps: Tensor) -> None:
        rates = self._rates
        beta1, beta2 = rates.betas
        self._first.lerp_(gradient, 1 - beta1)
        second.lerp_(gradient.square(), 1 - beta2)
        mean = self._first / (1 - beta1**steps)
        spread = (second / (1 - beta2**steps)).sqrt_().add_(rates.eps)
        lr = rate * (rates.adam * self.pieces[0].rate)
        if self.pieces[0].is_table:
            self.master.mul_(1 - lr * rates.table_decay)
        self.master.sub_(mean.div_(spread).mul_(lr))

    def named(self, stack: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and value of every piece in a stack [N, ...]."""
        return zip((piece.name for piece in self.pieces), stack, strict=True)

    def write(self, stack: Tensor, is_quantised: bool) -> None:
        piece = self.pieces[0]
        value = fake_quantise(stack, piece.format) if is_quantised else stack
        torch._foreach_copy_([each.value() for each in self.pieces], list(value.to(piece.leaf.dtype).unbind(0)))


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Roughly the nearest semi-orthogonal matrices: float32 matrices [N, a, b] with singular values moved to about 1.

    The result is bfloat16 on a GPU, float32 on a CPU, whose bfloat16 products are slow. Newton-Schulz iterations of the
    quintic above, on the smaller side.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-20)
    x = x.bfloat16() if x.is_cuda else x
    first, third, fifth = _NEWTON_SCHULZ
    for _ in range(steps):
        square = x @ x.mT
        x = first * x + (third * square + fifth * (square @ square)) @ x
    return x.mT if is_tall else x
