"""TileLang, which kernels are written in: loaded when the first one is called."""

# TileLang may be absent where types are checked.
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import functools
from typing import Any

from thalweg.interfaces import BackendUnavailableError

VERSION = "0.1.15"
"""Of TileLang, as the extra `nvidia` of this package has it. Its language changes between releases."""

ARCHITECTURE = "sm_90a"


@functools.cache
def tilelang() -> Any:
    """The module. Raises BackendUnavailableError if it is not installed, or another version than kernels are for."""
    try:
        import tilelang as module
    except ImportError as error:
        raise BackendUnavailableError(
            f"kernels of sm90 need TileLang, which cannot be imported ({error}); pip install 'thalweg-kernels[nvidia]'"
        ) from error
    if module.__version__ != VERSION:
        raise BackendUnavailableError(
            f"kernels of sm90 are written for tilelang {VERSION}; installed is {module.__version__}"
        )
    return module


def compiled(function: Any, architecture: str) -> Any:
    """The kernel of a TileLang function for an architecture (sm_90a, sm_100a); no GPU is needed.

    The function must not touch what lies outside of its tensors: no access is checked.
    """
    return tilelang().compile(
        function,
        target={"kind": "cuda", "arch": architecture},
        pass_configs={"tl.disable_safe_memory_legalize": True},
    )
