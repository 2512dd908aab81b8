"""A communicator that writes down what it is asked, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import Communicator

Array = NDArray[np.int32]


class Recorder:
    """thalweg.interfaces.Communicator that passes everything on. `steps`: per step, [operation, number of values]."""

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner
        self.steps: list[list[Any]] = []

    @property
    def rank(self) -> int:
        return self._inner.rank

    @property
    def size(self) -> int:
        return self._inner.size

    def next_step(self) -> None:
        self.steps.append([])

    def all_reduce_min(self, values: Array) -> Array:
        self.steps[-1].append(["min", values.size])
        return self._inner.all_reduce_min(values)

    def all_reduce_max(self, values: Array) -> Array:
        self.steps[-1].append(["max", values.size])
        return self._inner.all_reduce_max(values)

    def fail(self, reason: str) -> None:
        self._inner.fail(reason)
