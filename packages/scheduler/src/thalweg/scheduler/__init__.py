"""Continuous-batching scheduler: a C++ core, and the same core in plain Python in `thalweg.scheduler.reference`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.scheduler.__about__ import __version__
from thalweg.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from thalweg.scheduler._core import BlockPool, VerifyBudget, build_info
    from thalweg.scheduler.scheduler import Scheduler

__all__ = ["BlockPool", "Scheduler", "SchedulerConfig", "VerifyBudget", "__version__", "build_info"]

_NATIVE = {"BlockPool": "_core", "VerifyBudget": "_core", "build_info": "_core", "Scheduler": "scheduler"}


def __getattr__(name: str) -> Any:
    """Load the extension when it is first needed, so that config and reference work where it was not built."""
    if name not in _NATIVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_NATIVE[name]}"), name)
