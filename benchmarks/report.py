"""The command line, the table and the JSON file that every benchmark script shares."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

Row = Mapping[str, float | int | str]
CANNOT_RUN_HERE = 77
"""Exit status of a benchmark that needs what this machine lacks: `nox -s bench` goes on without it."""


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark: --smoke and --json."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smoke", action="store_true", help="smallest size: shows that it runs, not how fast")
    parser.add_argument("--json", type=_file_to_write, metavar="FILE", help="also write the rows to FILE")
    return parser


def _file_to_write(name: str) -> Path:
    """A path whose folder exists: said before a long run, not after it."""
    path = Path(name)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{name} is no file in a folder that exists")
    return path


def cannot_run(reason: str) -> NoReturn:
    """End the program, because this machine lacks something: the last line it prints says what."""
    print(reason, file=sys.stderr)
    sys.exit(CANNOT_RUN_HERE)


def publish(rows: Sequence[Row], json_file: Path | None = None) -> None:
    """Print the environment and the rows as a table, and write both to the file if one is given."""
    environment = describe_environment()
    print(" · ".join(f"{key} {value}" for key, value in environment.items()))
    print(render_table(rows))
    if json_file is not None:
        json_file.write_text(json.dumps({"environment": environment, "rows": list(rows)}, indent=1) + "\n")


def render_table(rows: Sequence[Row]) -> str:
    """A markdown table; numbers get three significant digits."""
    header = list(rows[0])
    cells = [[format_cell(row[key]) for key in header] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *cells]
    return "\n".join(
        "| " + " | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) + " |" for line in lines
    )


def format_cell(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def describe_environment() -> dict[str, str]:
    """Commit, device and versions: what a reader needs to compare two runs.

    A copy of the tree without its history is told the commit by the variable THALWEG_COMMIT.
    """
    result = {"commit": os.environ.get("THALWEG_COMMIT") or _commit_of_the_tree()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        result["device"] = torch.cuda.get_device_name()
        result["cuda"] = str(torch.version.cuda)
    else:
        result["device"], result["cores"] = processor_name(), str(os.cpu_count())
    result["python"] = platform.python_version()
    for name in ("torch", "tilelang"):
        if name in sys.modules:
            result[name] = str(sys.modules[name].__version__)
    return result


def _commit_of_the_tree() -> str:
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return git.stdout.strip() or "unknown"


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
