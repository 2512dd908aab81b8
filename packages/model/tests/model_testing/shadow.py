"""Every op of a forward pass twice: on the CPU, whose results the pass goes on with, and on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from thalweg.kernels import BoundOps

CHANGED_BYTES = 0.02
"""Share of the bytes that a device may store in another way: the last bit of a float sum decides roundings."""
FLOAT_ERRORS = {torch.bfloat16: 4e-3, torch.float32: 2e-4}
"""Relative Frobenius errors. float32: products with inputs of three bits are exact, sums of thousands are not."""


class Difference(NamedTuple):
    """How far a device is from the CPU in one tensor of one call."""

    op: str
    where: str
    """`result 0`, `argument 5`, ..."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    error: float
    """Relative Frobenius error of floats, else the share of elements that differ (of what the CPU has written)."""
    limit: float


class ShadowOps:
    """Ops of the CPU that run on a device, too; `differences` are those that are larger than they may be."""

    def __init__(self, cpu: BoundOps, device_ops: BoundOps, device: torch.device) -> None:
        self._cpu = cpu
        self._device_ops = device_ops
        self._device = device
        self._weights: dict[int, tuple[Any, Any]] = {}
        """Packed weights are moved once; they are kept so that no other object gets their id."""
        self.differences: list[Difference] = []
        self.worst: dict[str, float] = {}
        """Largest error of every op that has run."""

    def __getattr__(self, op: str) -> Callable[..., Any]:
        cpu, other = getattr(self._cpu, op), getattr(self._device_ops, op)

        def call(*args: Any, **kwargs: Any) -> Any:
            before = _mapped(args, torch.Tensor.clone)
            moved, moved_kwargs = self._moved(args), self._moved(kwargs)
            result = cpu(*args, **kwargs)
            found = other(*moved, **moved_kwargs)
            self._compare(op, "result", _visible(op, args, result), _visible(op, moved, found), None)
            self._compare(op, "argument", args, moved, before)
            return result

        return call

    def _moved(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if id(value) not in self._weights:
                self._weights[id(value)] = (value, _mapped(value, self._on_device))
            return self._weights[id(value)][1]
        if isinstance(value, dict):
            return {key: self._moved(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return _like(value, [self._moved(item) for item in value])
        return self._on_device(value) if isinstance(value, torch.Tensor) else value

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device with the strides of the tensor: gaps between rows and pages are part of a contract."""
        storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # type: ignore[call-overload]
        if not tensor.numel():
            return tensor.to(self._device)
        whole = storage.to(self._device, copy=True).view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _compare(self, op: str, kind: str, expected: Any, found: Any, before: Any) -> None:
        mine, theirs = list(_tensors(expected)), list(_tensors(found))
        olds = list(_tensors(before)) if before is not None else [None] * len(mine)
        for number, (want, got, old) in enumerate(zip(mine, theirs, olds, strict=True)):
            if want.numel() == 0 or (old is not None and want.dtype != torch.uint8 and torch.equal(old, want)):
                continue
            error, limit = _error(want, got.cpu(), old)
            self.worst[op] = max(self.worst.get(op, 0.0), error)
            if not error <= limit or want.shape != got.shape or want.dtype != got.dtype:
                self.differences.append(Difference(op, f"{kind} {number}", tuple(want.shape), want.dtype, error, limit))


def _error(want: torch.Tensor, got: torch.Tensor, old: torch.Tensor | None) -> tuple[float, float]:
    """How far `got` is from `want`, and how far it may be. old: what a tensor held that was written in place."""
    if want.is_floating_point():
        same = (want == got) | (want.isnan() & got.isnan())  # infinities, and what nobody has written
        size = float(want.double().masked_fill(same & ~want.isfinite(), 0).norm())
        error = float((got.double() - want.double()).masked_fill(same, 0).norm())
        return error / max(size, 1e-30), FLOAT_ERRORS[want.dtype]
    differs = got != want
    if want.dtype != torch.uint8:
        return float(differs.double().mean()), 0.0
    written = max(int((want != old).sum()), 1) if old is not None else want.numel()
    return int(differs.sum()) / written, CHANGED_BYTES


def _visible(op: str, args: tuple[Any, ...], result: Any) -> Any:
    """The result without what the contract calls undefined."""
    if op in ("paged_indexer_scores", "paged_candidate_scores", "indexer_scores_rows", "candidate_scores_rows"):
        visible = args[5] if op.startswith("paged") else args[6] - args[5]
        if "candidate" in op:
            blocks, size = args[-2:]
            inside = (visible[:, None] - blocks * size).clamp(min=0, max=size)
            visible = torch.where(blocks < 0, 0, inside).sum(-1)
        column = torch.arange(result.shape[1], device=result.device)
        return result.masked_fill(column >= visible[:, None], 0)
    if op == "expert_linear":
        return result.masked_fill((args[2].tokens < 0)[:, None], 0)
    return result


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _mapped(value, lambda tensor: found.append(tensor) or tensor)
    return found


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The value with every tensor inside of it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return _like(value, [_mapped(item, change) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value)(**{name: _mapped(getattr(value, name), change) for name in names})
    return value


def _like(value: Any, items: list[Any]) -> Any:
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
