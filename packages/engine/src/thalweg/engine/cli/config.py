"""Show every resolved option and where its value came from."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from thalweg.engine.checkpoint import checkpoint_directory
from thalweg.engine.cli.options import add_engine_options, engine_config
from thalweg.engine.cli.table import render
from thalweg.engine.config import OFFLINE_DEFAULTS, EngineConfig, Origin, ResolvedOption
from thalweg.engine.environment import unknown_variables
from thalweg.interfaces import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.usage = "%(prog)s [--json] [engine options]"
    parser.add_argument("--json", action="store_true", help="print an object: name -> {value, origin}")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what `thalweg generate` would use. Raises ThalwegError for a bad option, variable or checkpoint."""
    config = engine_config(arguments).with_defaults(**OFFLINE_DEFAULTS)
    notes = [_unknown_note(name, close) for name, close in unknown_variables().items()]
    try:
        directory = checkpoint_directory(config)
    except ConfigError as error:  # no model yet: the options can be shown all the same
        notes.append(str(error))
    else:
        config = _settled(config, directory)
    options = config.resolved()
    if arguments.json:
        print(json.dumps({o.field.name: {"value": o.value, "origin": _origin(o)} for o in options}, indent=2))
    else:
        print(render(("option", "value", "origin"), [(o.field.name, _show(o.value), _origin(o)) for o in options]))
    for note in notes:
        print(f"note: {note}", file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _settled(config: EngineConfig, directory: Path) -> EngineConfig:
    """With the defaults that depend on the checkpoint."""
    from thalweg.engine.drafting import settle_config
    from thalweg.model import ModelConfig

    return settle_config(config, ModelConfig.from_file(directory))


def _unknown_note(name: str, close: str | None) -> str:
    return f"{name} is set, but the engine has no such option" + (f"; did you mean {close}?" if close else "")


def _origin(option: ResolvedOption) -> str:
    if option.origin is Origin.ENVIRONMENT:
        return option.field.variable.full_name
    return option.field.flag if option.origin is Origin.ARGUMENT else option.origin.value


def _show(value: object) -> str:
    return repr(value) if isinstance(value, tuple) else str(value)
