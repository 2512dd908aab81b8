"""Run benchmarks one after another, and say at the end which of them did not run, and why.

A script that needs what this machine lacks, such as a GPU, ends with a status of its own and is left out. That is a
failure where the script was asked for by name.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
CANNOT_RUN_HERE = 77
"""As benchmarks/report.py has it."""


def benchmarks() -> list[str]:
    """The scripts with a main; other modules are what several of them share."""
    return [str(path) for path in sorted(FOLDER.glob("*.py")) if "__main__" in path.read_text()]


def ended(command: Sequence[str]) -> tuple[int, str]:
    """The status of a program, and the last line that it wrote to standard error, which is passed on."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
    said = ""
    for line in process.stderr or ():
        sys.stderr.write(line)
        said = line.strip() or said
    return process.wait(), said


def main() -> int:
    """1 when a script fails, or cannot run here and was asked for by name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help="default: all of the folder benchmarks")
    parser.add_argument("--smoke", action="store_true", help="run each at its smallest size")
    options = parser.parse_args()
    scripts = options.scripts or benchmarks()
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for script in scripts:
        print(f"\n{Path(script).name}", flush=True)
        status, said = ended([sys.executable, script, *(["--smoke"] if options.smoke else [])])
        if status:
            (skipped if status == CANNOT_RUN_HERE else failed)[script] = said or f"status {status}"
    print(f"\n{len(scripts) - len(skipped) - len(failed)} of {len(scripts)} benchmarks ran")
    for outcome, reasons in (("skipped", skipped), ("failed", failed)):
        for script, reason in reasons.items():
            print(f"{outcome} {Path(script).name}: {reason}")
    return int(bool(failed) or bool(options.scripts and skipped))


if __name__ == "__main__":
    sys.exit(main())
