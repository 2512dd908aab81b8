"""How long each component takes to import, and whether that initialises a device or pulls in torch."""

from __future__ import annotations

import statistics
import subprocess
import sys

from report import Row, arguments, publish

COMPONENTS = ("interfaces", "scheduler", "tiny", "kernels", "cache", "model", "engine")
LIMIT_S = 0.3
PROBE = """
import sys, time
{prelude}
began = time.perf_counter()
import thalweg.{component}
elapsed = time.perf_counter() - began
torch = sys.modules.get("torch")
print(elapsed, torch is not None, torch is not None and torch.accelerator.is_available())
"""


def measure(component: str, repeats: int) -> Row:
    """Median seconds of a warm import in a fresh interpreter; torch is imported beforehand where it is needed."""
    needs_torch = probe(component, "")[1]
    prelude = "import torch" if needs_torch else ""
    median_s = statistics.median(probe(component, prelude)[0] for _ in range(repeats))
    return {
        "component": component,
        "needs torch": str(needs_torch),
        "seconds without torch": median_s,
        "ratio to limit": median_s / LIMIT_S,
    }


def probe(component: str, prelude: str) -> tuple[float, bool]:
    code = PROBE.format(component=component, prelude=prelude)
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return float(output[0]), output[1] == "True"


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    publish([measure(component, 1 if options.smoke else 7) for component in COMPONENTS], options.json)


if __name__ == "__main__":
    main()
