"""Compile every device kernel for an architecture, without a GPU: what a machine with one would compile at first use.

Each kernel module lists its kernels at real dimensions in `COMPILE_EXAMPLES`, and in `HOPPER_KERNELS`, where there are
any, those of them that only sm_90a has the instructions for.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence

from thalweg.kernels.catalog import DEVICE_MODULES

ARCHITECTURES = ("sm_90a", "sm_100a")


def examples() -> Iterator[tuple[str, str]]:
    """(module, name) of every kernel."""
    for module in DEVICE_MODULES:
        for name in module.COMPILE_EXAMPLES:
            yield module.__name__, name


def fits(module: str, name: str, architecture: str) -> bool:
    """Whether the architecture has the instructions of a kernel."""
    return architecture == "sm_90a" or name not in getattr(importlib.import_module(module), "HOPPER_KERNELS", ())


def targets(module: str, name: str, wanted: Sequence[str]) -> list[str]:
    """The architectures to compile a kernel for: the wanted ones that fit, or the newest that does."""
    fitting = [architecture for architecture in ARCHITECTURES if fits(module, name, architecture)]
    return [architecture for architecture in fitting if architecture in wanted] if wanted else fitting[-1:]


def build(module: str, name: str, architecture: str) -> float:
    """Seconds that it took to compile one kernel."""
    started = time.perf_counter()
    importlib.import_module(module).COMPILE_EXAMPLES[name](architecture)
    return time.perf_counter() - started


def main() -> int:
    """1 when a kernel does not compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "architectures",
        nargs="*",
        metavar="ARCH",
        help=f"of {', '.join(ARCHITECTURES)}; default: of each kernel the newest that has its instructions",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--only", default="", help="kernels whose module or name contains this")
    options = parser.parse_args()
    if unknown := set(options.architectures) - set(ARCHITECTURES):
        parser.error(f"unknown architecture {', '.join(sorted(unknown))}; known are {', '.join(ARCHITECTURES)}")
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; at least 1 is needed")
    kernels = [(module, name) for module, name in examples() if options.only in f"{module}.{name}"]
    os.environ.setdefault("TILELANG_DISABLE_CACHE", "1")  # what is in a cache proves nothing
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    failed = 0
    # Workers are no copies of this process: torch and TileLang keep threads.
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        tasks = {
            pool.submit(build, *kernel, arch): (*kernel, arch)
            for kernel in kernels
            for arch in targets(*kernel, options.architectures)
        }
        for task in concurrent.futures.as_completed(tasks):
            module, name, arch = tasks[task]
            label = f"{arch:8} {module.removeprefix('thalweg.kernels.'):32} {name:48}"
            try:
                print(f"{label} {task.result():6.1f} s")
            except Exception as error:
                failed += 1
                print(f"{label} FAILED: {type(error).__name__}: {error}")
    print(f"{len(tasks) - failed} of {len(tasks)} kernels compiled")
    return int(failed > 0 or not tasks)


if __name__ == "__main__":
    sys.exit(main())
