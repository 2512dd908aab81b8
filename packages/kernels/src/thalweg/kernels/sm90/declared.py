"""What kernels for Hopper declare to the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.kernels.registry import Implementation


def implementation(
    function: Callable[..., Any], op: str | None = None, *, priority: int = 0, batch_invariant: bool = True
) -> Implementation:
    """A function of this folder for an op, by default the one of its name: deterministic, and safe in graphs.

    batch_invariant: whether a row's sums have one order whatever the batch.
    """
    return Implementation(
        op=op or function.__name__,
        backend="sm90",
        provider="tilelang",
        function=function,
        priority=priority,
        deterministic=True,
        batch_invariant=batch_invariant,
        graph_safe=True,
    )
