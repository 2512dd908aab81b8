"""Comparing kernels on a device with the reference on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels import bind, default_registry
from thalweg.kernels.testing import RowCall, Rows, broken_promises, same_bits

ROW_COUNTS = (0, 1, 2, 5, 67)
FEW_COUNTS = (1, 2, 3, 17, 33, 64)

reference = bind("cpu")
kernels = bind("sm90")


def compute(op: str, device: torch.device, *arguments: Any, on_device: Any = None) -> tuple[Any, Any]:
    """The result of the kernel, brought to the CPU, and of the reference, on the same arguments.

    Memory that results will lie in is littered with ones in every bit before the kernel runs.
    """
    expected = getattr(reference, op)(*arguments)
    given = [there(argument, device) for argument in arguments] if on_device is None else on_device
    litter(expected, device)
    return here(getattr(kernels, op)(*given)), expected


def there(argument: Any, device: torch.device) -> Any:
    """An argument on a device; tuples field by field."""
    if isinstance(argument, tuple):
        return like(argument, [there(part, device) for part in argument])
    return argument.to(device) if isinstance(argument, Tensor) else argument


def here(result: Any) -> Any:
    """A result on the CPU."""
    if isinstance(result, tuple):
        return like(result, [here(part) for part in result])
    return result.cpu() if isinstance(result, Tensor) else result


def like(result: Any, parts: list[Any]) -> Any:
    """A tuple of the same type of other parts."""
    return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)


def litter(result: Any, device: torch.device) -> None:
    """Leave ones in every bit in freed memory of the sizes of these tensors."""
    garbage = [torch.empty(part.shape, dtype=part.dtype, device=device) for part in flat(result) for _ in range(3)]
    for tensor in garbage:
        tensor.view(-1).view(torch.uint8).fill_(0xFF)


def flat(result: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, tuple):
        return [tensor for part in result for tensor in flat(part)]
    return [result] if isinstance(result, Tensor) else []


def equal(found: Any, expected: Any) -> bool:
    """Whether two results agree in every bit."""
    one, other = flat(found), flat(expected)
    return len(one) == len(other) and all(map(same_bits, one, other))


def bf16_steps(found: Tensor, expected: Tensor) -> tuple[int, float]:
    """How many steps of bfloat16 apart two tensors are at most, and the share of their elements that are apart."""
    if not expected.numel():
        return 0, 0.0
    steps = (_ordinal(found) - _ordinal(expected)).abs()
    return int(steps.max()), float((steps > 0).float().mean())


def _ordinal(x: Tensor) -> Tensor:
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def keeps_promises(op: str, call: RowCall, num_rows: int = 65) -> list[str]:
    """What the kernels of an op declare and do not keep on rows of an example on the device."""
    broken = []
    for implementation in default_registry().implementations(op, "sm90"):
        assert implementation.graph_safe
        broken += broken_promises(implementation, call, num_rows, FEW_COUNTS, (1,), "cuda")
    return broken


def by_row(*tensors: Tensor) -> Callable[[Tensor], list[Tensor]]:
    """From row ids to these rows of tensors on the device."""
    stored = [tensor.cuda() for tensor in tensors]
    return lambda ids: [tensor[ids] for tensor in stored]


def joined(result: Any) -> Rows:
    """A result as a flat tuple."""
    return tuple(flat(result))
