"""Muon for matrices and AdamW for everything else, over single-precision masters of the model's working tensors.

A model computes with working tensors (bfloat16 mostly, several checkpoint matrices joined in one). What is optimised
are pieces of them. There is one master per checkpoint tensor, which may be in several working tensors:
its gradient is the sum over all of them. Masters of one shape and rule are stacked, so that a step is a few batched
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
        copies: dict[str, list[Piece]] = {}
        for piece in pieces:
            copies.setdefault(piece.name, []).append(piece)
        stacks: dict[tuple[object, ...], list[list[Piece]]] = {}
        for same in copies.values():
            first = same[0]
            shape = tuple(first.value().shape)
            key = (len(same), first.rule, first.rate, first.is_table, first.format, shape, first.leaf.dtype)
            stacks.setdefault(key, []).append(same)
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
    """Masters of one shape, storage format and rule."""

    def __init__(self, copies: list[list[Piece]], masters: Mapping[str, Tensor], rates: Rates) -> None:
        """copies: for each of N masters, its pieces; equally many for all."""
        self._copies = copies
        self._first_piece = copies[0][0]
        self.master = torch.stack([masters[same[0].name].detach().float() for same in copies])
        """[N, ...]"""
        self.average = self.master
        """[N, ...], the masters themselves until they are averaged."""
        self._rates = rates
        self._first = torch.zeros_like(self.master)
        self._second = torch.zeros_like(self.master) if self._first_piece.rule == "adam" else None

    def update(self, rate: Tensor, steps: Tensor) -> None:
        parts = [torch.stack([piece.gradient() for piece in each]).float() for each in zip(*self._copies, strict=True)]
        gradient = sum(parts[1:], start=parts[0])
        if self._second is None:
            self._muon(gradient, rate)
        else:
            self._adam(gradient, self._second, rate, steps)

    def _muon(self, gradient: Tensor, rate: Tensor) -> None:
        rates = self._rates
        self._first.mul_(rates.momentum).add_(gradient)
        direction = orthogonalised(gradient.add_(self._first, alpha=rates.momentum))
        lr = rate * (rates.muon * self._first_piece.rate)
        scale = 0.2 * max(self.master.shape[-2:]) ** 0.5
        self.master.mul_(1 - lr * rates.decay).sub_(direction.float() * (lr * scale))

    def _adam(self, gradient: Tensor, second: Tensor, rate: Tensor, steps: Tensor) -> None:
        rates = self._rates
        beta1, beta2 = rates.betas
        self._first.lerp_(gradient, 1 - beta1)
        second.lerp_(gradient.square(), 1 - beta2)
        mean = self._first / (1 - beta1**steps)
        spread = (second / (1 - beta2**steps)).sqrt_().add_(rates.eps)
        lr = rate * (rates.adam * self._first_piece.rate)
        if self._first_piece.is_table:
            self.master.mul_(1 - lr * rates.table_decay)
        self.master.sub_(mean.div_(spread).mul_(lr))

    def named(self, stack: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and value of every master in a stack [N, ...]."""
        return zip((same[0].name for same in self._copies), stack, strict=True)

    def write(self, stack: Tensor, is_quantised: bool) -> None:
        value = fake_quantise(stack, self._first_piece.format) if is_quantised else stack
        values = value.to(self._first_piece.leaf.dtype).unbind(0)
        for each in zip(*self._copies, strict=True):
            torch._foreach_copy_([piece.value() for piece in each], list(values))


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
