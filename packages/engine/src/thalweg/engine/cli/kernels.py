"""Show which implementation serves each op on a backend, and why."""

from __future__ import annotations

import argparse

from thalweg.engine.cli.options import add_engine_options, engine_config
from thalweg.interfaces import BackendUnavailableError, load_backend

_OPTIONS = ("backend", "kernels", "batch_invariant")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_engine_options(parser, _OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Print the table of what `thalweg generate` would take with these options and variables.

    Raises what an engine would: ConfigError for unknown names, BackendUnavailableError for a backend without kernels
    and for an override that cannot be met.
    """
    options = engine_config(arguments).backend
    from thalweg.engine.device_ops import DEVICE_OPS, by_reference, missing_ops
    from thalweg.kernels import bind, table, unserved_ops
    from thalweg.kernels.sm90.library import ARCHITECTURE

    name, batch_invariant, overrides = options.name, options.batch_invariant, dict(options.kernels)
    architecture = ARCHITECTURE if name == "sm90" else None
    ops = bind(name, overrides, batch_invariant, architecture=architecture)
    if name != "cpu":
        print(_device_line(name, architecture))
    print(table(name, batch_invariant=batch_invariant, architecture=architecture, overrides=overrides))
    unserved = unserved_ops(name, batch_invariant=batch_invariant, architecture=architecture, overrides=overrides)
    missing = missing_ops(ops)
    if missing:
        print(f"\nThe engine calls {len(missing)} ops that have no implementation that fits; it takes them by name:")
        pairs = [f"{op}={provider}" for op, provider in overrides.items()]
        print(f"--kernels {','.join([*pairs, by_reference(missing)])}")
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
