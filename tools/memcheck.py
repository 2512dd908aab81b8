"""Watch every device kernel on small examples with compute-sanitizer's memcheck: the tests that are marked `memcheck`.

They are dealt out to several processes on one GPU. Tensors get memory of their own, so that what is touched beyond
their ends is noticed, and kernels of torch are not watched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = "packages/kernels/tests/test_memory_sm90.py"
SANITIZER = ("--tool", "memcheck", "--error-exitcode", "99", "--kernel-name-exclude", "kns=at6native")
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "THALWEG_REQUIRE": "sm90", "OMP_NUM_THREADS": "1"}
CLEAN = "ERROR SUMMARY: 0 errors"
"""What the sanitizer says at the end."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "memcheck")


def collected(paths: Sequence[str]) -> list[str]:
    """The marked tests of these files."""
    found = subprocess.run([*PYTEST, "--collect-only", *paths], capture_output=True, text=True, check=False)
    tests = [line for line in found.stdout.splitlines() if "::" in line]
    if found.returncode or not tests:
        raise SystemExit(f"no test could be collected from {', '.join(paths)}:\n{found.stdout}{found.stderr}")
    return tests


def main() -> int:
    """1 when a kernel touches what it must not, or a test fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=[TESTS], help=f"files with marked tests (default: {TESTS})")
    parser.add_argument("--jobs", type=int, default=8, help="processes that share the GPU (default: 8)")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program, where it is not on PATH")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; at least 1 is needed")
    if shutil.which(options.sanitizer) is None:
        parser.error(f"--sanitizer is {options.sanitizer}, which is no program; it comes with the CUDA toolkit")
    started, tests = time.perf_counter(), collected(options.paths)
    with tempfile.TemporaryDirectory() as folder:
        shares = [tests[place :: options.jobs] for place in range(min(options.jobs, len(tests)))]
        outputs = [Path(folder, f"{place}.txt") for place in range(len(shares))]
        running = []
        for share, output in zip(shares, outputs, strict=True):
            command = [options.sanitizer, *SANITIZER, *PYTEST, *share]
            with output.open("w") as file:
                given = {**os.environ, **ENVIRONMENT}
                running.append(subprocess.Popen(command, env=given, stdout=file, stderr=subprocess.STDOUT))
        statuses = [process.wait() for process in running]
        failed = [place for place, status in enumerate(statuses) if status or CLEAN not in outputs[place].read_text()]
        for place in failed:
            print(f"{', '.join(shares[place])}\n{outputs[place].read_text()}")
    clean = len(shares) - len(failed)
    print(f"{len(tests)} tests, {clean} of {len(shares)} processes clean, {time.perf_counter() - started:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
