"""The ops of this package: one entry per function in the OPS dictionaries of the reference modules."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

MODULES = (
    "numerics",
    "gemm",
    "norm",
    "rope",
    "quant",
    "hyper_connections",
    "moe",
    "engram",
    "indexer",
    "attention",
    "sampling",
    "compressor",
    "cache",
    "metadata",
)


def reference_ops() -> dict[str, Callable[..., Any]]:
    """Every reference op by name."""
    ops: dict[str, Callable[..., Any]] = {}
    for module in MODULES:
        path = f"thalweg.kernels.reference.{module}"
        if importlib.util.find_spec(path) is None:
            continue
        ops.update(importlib.import_module(path).OPS)
    return ops
