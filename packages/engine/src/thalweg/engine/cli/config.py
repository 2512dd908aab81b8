"""Show every resolved option and where its value came from."""

from __future__ import annotations

import argparse
import json

from thalweg.engine.cli.options import add_engine_options, engine_config
from thalweg.engine.cli.table import render
from thalweg.engine.config import EngineConfig, Origin, ResolvedOption
from thalweg.engine.environment import unknown_variables
from thalweg.interfaces import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.usage = "%(prog)s [--json] [engine options]"
    parser.add_argument("--json", action="store_true", help="print an object: name -> {value, origin}")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what `thalweg generate` would use. Raises ThalwegError for a bad option, variable or checkpoint."""
    config = engine_config(arguments).with_defaults(stop_preempted_request=False)
    notes = [_unknown_note(name, close) for name, close in unknown_variables().items()]
    try:
        config = _settled(config)
    except ConfigError as error:
        if config.model is not None:
            raise
        notes.append(str(error))
    options = config.resolved()
    if arguments.json:
        print(json.dumps({o.field.name: {"value": o.value, "origin": _origin(o)} for o in options}, indent=2))
        return 0
    print(render(("option", "value", "origin"), [(o.field.name, _show(o.value), _origin(o)) for o in options]))
    for note in notes:
        print(f"note: {note}")
    return 0


def _settled(config: EngineConfig) -> EngineConfig:
    """With the defaults that depend on the checkpoint."""
    from thalweg.engine.assembly import checkpoint_directory
    from thalweg.model import ModelConfig

    facts = ModelConfig.from_file(checkpoint_directory(config))
    return config.for_checkpoint(max_position_embeddings=facts.max_position_embeddings)


def _unknown_note(name: str, close: str | None) -> str:
    return f"{name} is set, but the engine has no such option" + (f"; did you mean {close}?" if close else "")


def _origin(option: ResolvedOption) -> str:
    if option.origin is Origin.ENVIRONMENT:
        return option.field.variable.full_name
    return option.field.flag if option.origin is Origin.ARGUMENT else option.origin.value


def _show(value: object) -> str:
    return repr(value) if isinstance(value, tuple) else str(value)
