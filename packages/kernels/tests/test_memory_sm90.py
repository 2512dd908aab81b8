"""Every kernel for Hopper on small examples: what `tools/memcheck.py` runs under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from kernels_testing.all_rows import NOT_BY_ROW, examples_of, is_taken

from thalweg.kernels import Fp8Weight, Mxfp8Rows, bind, default_registry
from thalweg.kernels.catalog import DEVICE_MODULES
from thalweg.kernels.sm90.library import tilelang

ARCHITECTURE = "sm_90a"
MANY_ROWS = 2000
"""Enough for kernels of many rows, where an op has others for few."""
kernels = bind("sm90")


def share_out() -> None:
    """A thread has one sequence, or several."""
    for sequences in (1, 40, 2500):
        previous = torch.arange(sequences).flip(0) - 1
        kernels.redistribute(2 * sequences, previous, torch.rand(sequences, 5))


def pack_weight() -> None:
    kernels.pack_fp8_weight(torch.zeros(64, 96, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8))


def stream_weight() -> None:
    """A weight that is large enough to stream through shared memory."""
    tiles, scales = torch.zeros(40, 256, 1024, dtype=torch.uint8), torch.full((40, 256), 127, dtype=torch.uint8)
    rows = Mxfp8Rows(torch.zeros(20, 8192, dtype=torch.uint8), torch.full((20, 256), 127, dtype=torch.uint8))
    kernels.fp8_linear(rows, Fp8Weight(tiles, scales))


OTHERS: dict[str, Callable[[], None]] = {"redistribute": share_out, "pack_fp8_weight": pack_weight}
"""Examples of ops without rows."""
LARGER: dict[str, Callable[[], None]] = {"fp8_linear": stream_weight}
"""Examples beside those of rows, where a kernel serves no size as small."""


def run_examples(op: str, device: torch.device) -> None:
    """One row, all rows, and these again and again, by every kernel of the op."""
    for kernel in default_registry().implementations(op, "sm90"):
        for case in examples_of(op):
            if is_taken(case, kernel, device):
                with torch.device(device):
                    call, ids = case.make(**case.parameters), torch.arange(case.num_rows)
                    call(kernel.function, ids[:1])
                    call(kernel.function, ids.repeat(-(-MANY_ROWS // case.num_rows)))


@contextmanager
def compilations(module: ModuleType, build: Callable[..., Any]) -> Iterator[set[str]]:
    """The names of all kernels that a module builds inside, by `build`; it forgets those it has before and after."""
    names: set[str] = set()
    builders = [value for value in vars(module).values() if hasattr(value, "cache_clear")]

    def recorded(function: Any, **options: Any) -> Any:
        names.add(str(function.attrs["global_symbol"]))
        return build(function, **options)

    def forget() -> None:
        for builder in builders:
            builder.cache_clear()

    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tilelang(), "compile", recorded)
        yield names
    forget()


def test_every_op_without_rows_has_an_example_here() -> None:
    served = {op for op in NOT_BY_ROW if default_registry().implementations(op, "sm90")}
    assert served == OTHERS.keys()


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.memcheck
@pytest.mark.parametrize("module", DEVICE_MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_kernel_of_a_module_runs_on_small_examples(module: Any, hopper: torch.device) -> None:
    with compilations(module, lambda function, **_: function) as listed:
        for build in module.COMPILE_EXAMPLES.values():
            build(ARCHITECTURE)
    with compilations(module, tilelang().compile) as run, torch.device(hopper):
        for op in sorted({implementation.op for implementation in module.IMPLEMENTATIONS}):
            OTHERS.get(op, lambda op=op: run_examples(op, hopper))()
            LARGER.get(op, lambda: None)()
        torch.cuda.synchronize()
    assert listed <= run
