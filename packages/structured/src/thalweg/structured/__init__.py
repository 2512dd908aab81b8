"""Constrained decoding with xgrammar, for any sampler.

Names are loaded on first use: importing the package loads neither xgrammar nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from thalweg.structured.__about__ import __version__

_MODULE_OF: dict[str, str] = {}

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
