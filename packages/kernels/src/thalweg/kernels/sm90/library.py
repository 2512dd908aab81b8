"""TileLang, which kernels are written in: loaded when the first one is called."""

# TileLang may be absent where types are checked.
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.interfaces import BackendUnavailableError

VERSION = "0.1.15"
"""Of TileLang, as the extra `nvidia` of this package has it. Its language changes between releases."""

ARCHITECTURE = "sm_90a"

LINES_OF_NVCC = 6
"""How many of the last lines that the compiler printed an error shows; it may print one for every use of a name."""

_compilations = [0]


def num_compiled() -> int:
    """Kernels that `compiled` has built in this process, or loaded from the cache of an earlier one."""
    return _compilations[0]


def check_tilelang() -> None:
    """Raise BackendUnavailableError unless the right version is installed. Not imported, as that takes seconds."""
    try:
        version = importlib.metadata.version("tilelang")
    except importlib.metadata.PackageNotFoundError:
        tilelang()  # lies on the path without a word about its version, or nowhere
    else:
        _check_version(version)


@functools.cache
def tilelang() -> Any:
    """The module. Raises BackendUnavailableError if it cannot be imported, or is of another version than VERSION."""
    try:
        import tilelang as module
    except Exception as error:  # a library that it loads may be missing (OSError), or of the wrong version (anything)
        raise BackendUnavailableError(
            f"kernels of sm90 need TileLang, which cannot be imported ({type(error).__name__}: {error}); "
            "pip install 'thalweg-kernels[nvidia]'"
        ) from error
    _check_version(module.__version__)
    return module


def compiled(function: Any, architecture: str, pass_configs: Mapping[str, Any] | None = None) -> Any:
    """The kernel of a TileLang function for an architecture (sm_90a, sm_100a); no GPU is needed.

    The function must not touch what lies outside of its tensors: no access is checked. pass_configs: further settings
    of TileLang's passes, by name.
    """
    module = tilelang()
    try:
        kernel = module.compile(
            function,
            target={"kind": "cuda", "arch": architecture},
            pass_configs={"tl.disable_safe_memory_legalize": True, **(pass_configs or {})},
        )
    except Exception as error:
        home = module.env.CUDA_HOME
        if not Path(home, "bin", "nvcc").is_file():
            place = f"in {home}/bin, where CUDA_HOME, or else PATH, leads" if home else "on PATH, nor in CUDA_HOME"
            raise BackendUnavailableError(
                f"kernels that no earlier process has built need nvcc, which is not {place}; install the CUDA toolkit, "
                f"or set TILELANG_CACHE_DIR to where they were built ({error})"
            ) from error
        if (said := _said_by_nvcc(str(error))) is not None:
            raise BackendUnavailableError(f"{Path(home, 'bin', 'nvcc')} failed to compile a kernel: {said}") from error
        raise
    _compilations[0] += 1
    return kernel


def _said_by_nvcc(report: str) -> str | None:
    """The end of what nvcc printed, out of TileLang's report, which opens with the source; None: it was not nvcc."""
    if "nvcc" in report.partition("\n")[0].lower():  # it took too long, or is a file that cannot be run
        return report.partition("\n")[0]
    _, is_there, output = report.rpartition("\nCompilation error:\n")
    if not is_there:
        return None
    lines = [line.rstrip()[:400] for line in output.partition("\nCommand: ")[0].splitlines() if line.strip()]
    return "\n".join(lines[-LINES_OF_NVCC:]) or "it printed nothing"


def _check_version(version: str) -> None:
    if version != VERSION:
        raise BackendUnavailableError(f"kernels of sm90 are written for tilelang {VERSION}; installed is {version}")
