"""Bind the ops of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from thalweg.kernels.catalog import reference_ops


def bind(backend: str, overrides: Mapping[str, str] | None = None, batch_invariant: bool = False) -> SimpleNamespace:
    """An object whose attributes are the implementations chosen for `backend`."""
    return SimpleNamespace(**reference_ops())
