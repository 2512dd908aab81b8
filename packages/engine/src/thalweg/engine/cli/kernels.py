"""Show which implementation serves each op on a backend, and why."""

from __future__ import annotations

import argparse

from thalweg.interfaces import BackendUnavailableError, load_backend
from thalweg.interfaces.backend import BACKEND_NAMES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    names = ", ".join(BACKEND_NAMES)
    parser.add_argument("--backend", metavar="NAME", default="cpu", help=f"one of {names} (default cpu)")
    parser.add_argument("--batch-invariant", action="store_true", help="take only implementations that promise it")


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Raises ConfigError for an unknown name, BackendUnavailableError for a backend not installed."""
    from thalweg.engine.device_ops import DEVICE_OPS, by_reference
    from thalweg.kernels import bind, table, unserved_ops
    from thalweg.kernels.sm90.library import ARCHITECTURE

    name, batch_invariant = arguments.backend, arguments.batch_invariant
    bind(name)  # refuses a backend without kernels: in the table nothing but gaps would be left
    architecture = ARCHITECTURE if name == "sm90" else None
    if name != "cpu":
        print(_device_line(name, architecture))
    print(table(name, batch_invariant=batch_invariant, architecture=architecture))
    unserved = unserved_ops(name, batch_invariant=batch_invariant, architecture=architecture)
    missing = [op for op in DEVICE_OPS if op in unserved]
    if missing:
        print(f"\nThe engine calls {len(missing)} ops that have no implementation that fits; it takes them by name:")
        print(f"--kernels {by_reference(missing)}")
    elif unserved:
        print(f"\nThe {len(DEVICE_OPS)} ops that the engine calls on a device all have one that fits.")
        print(f"It does not call the {len(unserved)} that have none.")
    return 0


def _device_line(name: str, architecture: str | None) -> str:
    """What the table is for: the device that is here, or the architecture."""
    built_for = f" ({architecture})" if architecture else ""
    try:
        backend = load_backend(name)
    except BackendUnavailableError as error:
        return f"{name}{built_for}, without a device: {error}\n"
    line = f"{name}{built_for} on {backend.device_name}\n"
    backend.close()
    return line
