"""How much memory and time the inspection of a checkpoint's headers takes, at the released model's 96,085 tensors."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from report import Row, arguments, publish

from thalweg.model import ModelConfig, small_config
from thalweg.model.synthetic import write_sparse_checkpoint

LIMIT_MIB = 500
RELEASED = Path(__file__).parent.parent / "packages/model/tests/released"
PROBE = """
import sys, time
from thalweg.model import inspect_checkpoint
began = time.perf_counter()
report = inspect_checkpoint(sys.argv[1])
text = report.render(every_tensor=True)
elapsed = time.perf_counter() - began
try:
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(report.num_tensors, report.num_bytes, len(report.problems), elapsed, peak / 1024, "torch" in sys.modules)
"""


def measure(config: ModelConfig, num_shards: int) -> Row:
    """Inspect a sparse checkpoint of the config in a fresh interpreter."""
    with tempfile.TemporaryDirectory() as directory:
        write_sparse_checkpoint(directory, config, num_shards)
        command = [sys.executable, "-c", PROBE, directory]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {
        "tensors": int(output[0]),
        "bytes": int(output[1]),
        "problems": int(output[2]),
        "seconds": float(output[3]),
        "peak MiB": float(output[4]),
        "ratio to limit": float(output[4]) / LIMIT_MIB,
        "imports torch": output[5],
    }


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    config = small_config() if options.smoke else ModelConfig.from_file(RELEASED)
    publish([measure(config, 3 if options.smoke else 48)], options.json)


if __name__ == "__main__":
    main()
