"""Expert load balancing for any mixture-of-experts engine: counts, placements, and moving weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.eplb.__about__ import __version__

if TYPE_CHECKING:
    from thalweg.eplb._core import build_info

__all__ = ["__version__", "build_info"]

_LAZY = {"build_info": "_core"}


def __getattr__(name: str) -> Any:
    """Load a module when a name of it is first needed: the extension and torch are not for everybody."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
