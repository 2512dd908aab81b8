"""Command-line options of the engine (from its option table) and of a request (from `SamplingParams`)."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

from thalweg.engine.config import OFFLINE_DEFAULTS, EngineConfig
from thalweg.engine.fields import FIELDS
from thalweg.interfaces import ConfigError, SamplingParams

_ENGINE = "engine."
_SAMPLING = "sampling."


def _token_ids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "int | None": int,
    "tuple[int, ...]": _token_ids,
}

SAMPLING_HELP = {
    "temperature": "below 1e-5 takes the most likely token",
    "top_p": "keep the most likely tokens up to this mass",
    "top_k": "keep this many most likely tokens; -1 keeps all",
    "seed": "seed of every prompt; without it each prompt draws its own from --seed",
    "max_tokens": "most output tokens",
    "min_tokens": "output tokens before anything but the length can end the output",
    "stop": "end the output before this text; may be repeated",
    "stop_token_ids": "end the output after one of these token ids, separated by commas",
    "ignore_eos": "go on after the end-of-sequence token",
}
"""The fields of `SamplingParams` that have an option: those whose feature exists."""


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """One option per row of the engine's option table."""
    group = parser.add_argument_group("engine options", "each is also read from THALWEG_<NAME>, with underscores")
    defaults = EngineConfig().with_defaults(**OFFLINE_DEFAULTS)
    for option in FIELDS:
        default = option.read(defaults)
        text = f"{option.help} (default {_show(default)})" if default is not None else option.help
        settings: dict[str, Any] = {"dest": _ENGINE + option.name, "default": None, "help": text.replace("%", "%%")}
        if option.is_switch:
            group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **settings)
        else:
            metavar = "{" + ",".join(option.choices) + "}" if option.choices else option.name.rpartition("_")[2].upper()
            group.add_argument(option.flag, metavar=metavar, **settings)


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """The configuration from the given options and the environment. Raises ConfigError naming the option."""
    overrides: dict[str, Any] = {}
    for option in FIELDS:
        given = getattr(arguments, _ENGINE + option.name)
        if given is None:
            continue
        overrides[option.name] = given if option.is_switch else _parse(option.flag, option.variable.parse, given)
    return EngineConfig.build(**overrides)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """One option per supported field of `SamplingParams`; a name that the engine has too gets a prefix."""
    group = parser.add_argument_group("sampling options", "the same for every prompt")
    for field in dataclasses.fields(SamplingParams):
        if field.name not in SAMPLING_HELP:
            continue
        text = SAMPLING_HELP[field.name] + ("" if field.default in (None, ()) else f" (default {_show(field.default)})")
        settings: dict[str, Any] = {"dest": _SAMPLING + field.name, "default": None, "help": text}
        if field.type == "bool":
            group.add_argument(_sampling_flag(field.name), action=argparse.BooleanOptionalAction, **settings)
        elif field.type == "tuple[str, ...]":
            group.add_argument(_sampling_flag(field.name), action="append", metavar="TEXT", **settings)
        else:
            metavar = "IDS" if field.type == "tuple[int, ...]" else field.name.rpartition("_")[2].upper()
            group.add_argument(_sampling_flag(field.name), metavar=metavar, **settings)


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters from the given options. Raises ConfigError naming the option."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(SamplingParams):
        given = getattr(arguments, _SAMPLING + field.name, None)
        if isinstance(given, str):
            given = _parse(_sampling_flag(field.name), _PARSERS[str(field.type)], given)
        values[field.name] = given
    return SamplingParams.from_dict(values)


def _sampling_flag(name: str) -> str:
    flag = "--" + name.replace("_", "-")
    return flag.replace("--", "--sampling-", 1) if flag in {option.flag for option in FIELDS} else flag


def _parse(flag: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is {text!r}: {error}") from None


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value not in ((), "") else "none"
