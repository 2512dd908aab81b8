"""How long each component takes to import, beyond torch, and whether that initialises a device.

`import thalweg.model` and `import thalweg.engine` load their names on first use, so both are measured: the import alone
and the import with every public name. torch is imported beforehand wherever something needs it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from report import Row, arguments, publish

COMPONENTS = ("interfaces", "scheduler", "dspark", "structured", "tiny", "kernels", "cache", "model", "engine")
NEED_TORCH = ("structured", "kernels", "cache", "model", "engine")
LIMIT_S = 0.3
PROBE = """
import gc, importlib, sys, threading, time
initialised = []
if {import_torch}:
    import torch
    torch.cuda._lazy_init = lambda: initialised.append("cuda")
gc.freeze()  # or the collector would walk the objects of torch on our account
began = time.perf_counter()
module = importlib.import_module("thalweg.{component}")
imported = time.perf_counter()
for name in module.__all__:
    getattr(module, name)
finished = time.perf_counter()
touched = bool(initialised) or threading.active_count() > 1
print(imported - began, finished - began, "torch" in sys.modules, touched)
"""


def measure(component: str, repeats: int) -> Row:
    """Median seconds of warm imports in fresh interpreters."""
    runs = [probe(component, import_torch=component in NEED_TORCH) for _ in range(repeats)]
    import_s, names_s = (statistics.median(float(run[column]) for run in runs) for column in (0, 1))
    return {
        "component": component,
        "with torch": runs[0][2],
        "import, s": import_s,
        "with every name, s": names_s,
        "ratio to limit": names_s / LIMIT_S,
        "initialises a device or starts a thread": str(any(run[3] == "True" for run in runs)),
    }


def probe(component: str, *, import_torch: bool) -> list[str]:
    """Seconds of the import, seconds with all names, whether torch is loaded, whether a device was touched."""
    code = PROBE.format(component=component, import_torch=import_torch)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    components, repeats = (("interfaces", "kernels"), 1) if options.smoke else (COMPONENTS, 7)
    publish([measure(component, repeats) for component in components], options.json)


if __name__ == "__main__":
    main()
