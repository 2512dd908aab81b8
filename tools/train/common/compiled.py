"""Hot functions, compiled once for every set of shapes and shared by all layers."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Compiled(Generic[_P, _R]):
    """A function of tensors that runs as written, and through torch.compile once `compile_all` was called."""

    is_on = False

    def __init__(self, function: Callable[_P, _R]) -> None:
        self._function = function
        self._compiled: Callable[_P, _R] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not Compiled.is_on:
            return self._function(*args, **kwargs)
        if self._compiled is None:
            self._compiled = torch.compile(self._function, dynamic=False, fullgraph=True)
        return self._compiled(*args, **kwargs)


def compile_all() -> None:
    """From now on, compile. A function that meets more shapes than the limit would silently run as written."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.automatic_dynamic_shapes = False
    Compiled.is_on = True


def load_compiled(path: Path | None) -> None:
    """Take over what an earlier process compiled, where the file exists; None = nothing."""
    if path is not None and path.is_file():
        torch.compiler.load_cache_artifacts(zlib.decompress(path.read_bytes()))


def save_compiled(path: Path | None) -> None:
    """Keep what this process compiled in one file; None = nowhere."""
    artifacts = None if path is None else torch.compiler.save_cache_artifacts()
    if path is not None and artifacts is not None:
        path.write_bytes(zlib.compress(artifacts[0]))
