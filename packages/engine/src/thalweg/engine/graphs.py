"""Graphs of one piece of device work by its number of rows: sizes, padding, and the buffers they work on."""

from __future__ import annotations

import bisect
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from thalweg.interfaces import Backend, BackendUnavailableError, Graph, InvariantError

_LOG = logging.getLogger(__name__)

RowWork = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""From tensors [n, ...] to tensors with a multiple of n rows, the same multiple for every n."""


def graph_sizes(largest: int, interval: int = 8) -> tuple[int, ...]:
    """Numbers of rows that graphs are captured for, ascending: powers of two below the interval, then its multiples.

    The largest is always one of them; an interval beyond it counts as it.
    """
    interval = min(interval, largest)
    powers = [1 << power for power in range(interval.bit_length()) if 1 << power < interval]
    return (*powers, *range(interval, largest, interval), largest)


def size_for(sizes: Sequence[int], num_rows: int) -> int:
    """The smallest of the ascending sizes that holds so many rows. Raises InvariantError where none does."""
    place = bisect.bisect_left(sizes, num_rows)
    if place == len(sizes):
        raise InvariantError(f"{num_rows} rows were planned; graphs are captured for up to {sizes[-1]}")
    return sizes[place]


class RowGraphs:
    """Work that is captured once per size and replayed afterwards, on the first rows of one set of buffers.

    backend: has graphs. sizes: ascending, see `graph_sizes`. example: inputs of the largest size; what they hold
    is what the work is warmed up with. work: computes the same number of outputs for every size, reads nothing back and
    makes tensors of shapes that depend on those of its inputs alone. name: in errors and logs.
    """

    def __init__(
        self, backend: Backend, sizes: Sequence[int], example: Sequence[torch.Tensor], work: RowWork, name: str
    ) -> None:
        self.sizes = tuple(sizes)
        self._inputs = [tensor.clone() for tensor in example]
        self._outputs: list[torch.Tensor] = []
        self._graphs: dict[int, Graph] = {}
        started = time.perf_counter()
        for size in reversed(self.sizes):
            self._graphs[size] = self._capture(backend, size, work, name)
        _LOG.info("captured %d graphs of %s in %.1f s", len(self.sizes), name, time.perf_counter() - started)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for inputs of one of the sizes; they hold until the next call."""
        size = inputs[0].shape[0]
        if size not in self._graphs:
            raise InvariantError(f"{size} rows are no size of a graph; {', '.join(map(str, self.sizes))} are")
        copy_all([tensor[:size] for tensor in self._inputs], inputs)
        return self._replay(size)

    def run_padded(self, inputs: Sequence[torch.Tensor], padding: Sequence[int]) -> list[torch.Tensor]:
        """The outputs for inputs of any number of rows up to the largest size, those of padding rows left out.

        padding: what each input holds in rows that belong to nobody.
        """
        num_rows = inputs[0].shape[0]
        size = size_for(self.sizes, num_rows)
        for tensor, value in zip(self._inputs, padding, strict=True):
            tensor[num_rows:size].fill_(value)
        copy_all([tensor[:num_rows] for tensor in self._inputs], inputs)
        return [output[: output.shape[0] // size * num_rows] for output in self._replay(size)]

    def _replay(self, size: int) -> list[torch.Tensor]:
        self._graphs[size].replay()
        return self._first_rows(size)

    def _first_rows(self, size: int) -> list[torch.Tensor]:
        """What belongs to so many input rows of every output."""
        return [output[: output.shape[0] // self.sizes[-1] * size] for output in self._outputs]

    def _capture(self, backend: Backend, size: int, work: RowWork, name: str) -> Graph:
        inputs = [tensor[:size] for tensor in self._inputs]

        def fill_outputs() -> None:
            outputs = work(inputs)
            if not self._outputs:  # the largest size comes first, and runs once before it is captured
                self._outputs = [torch.empty_like(output) for output in outputs]
            copy_all(self._first_rows(size), outputs)

        try:
            graph = backend.capture(fill_outputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise BackendUnavailableError(
                f"graphs is True, and {size} rows of {name} cannot be captured ({error}); every op inside must be safe "
                f"for graphs, as `thalweg kernels --backend {backend.name}` says of each; graphs=False goes without"
            ) from error
        if graph is None:
            raise InvariantError(f"backend {backend.name} has no graphs")
        return graph


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors of equal shapes and dtypes, all of one dtype by one kernel."""
    groups: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = defaultdict(lambda: ([], []))
    for target, source in zip(targets, sources, strict=True):
        if target.dtype != source.dtype or target.shape != source.shape:
            raise InvariantError(
                f"a buffer is {target.dtype} {list(target.shape)}; it was given {source.dtype} {list(source.shape)}"
            )
        if target.numel():
            groups[target.dtype][0].append(target)
            groups[target.dtype][1].append(source)
    for group in groups.values():
        torch._foreach_copy_(*group)
