"""Command-line options of the engine (from its option table) and of a request (from `SamplingParams`)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from thalweg.engine.cli.files import read_text
from thalweg.engine.config import OFFLINE_DEFAULTS, EngineConfig
from thalweg.engine.fields import FIELDS, parsed
from thalweg.interfaces import ConfigError, GrammarSpec, SamplingParams, shown

_ENGINE = "engine."
_SAMPLING = "sampling."


@dataclass(frozen=True, slots=True)
class SamplingOption:
    """How the command line gives a field of `SamplingParams`."""

    field: str
    help: str
    parse: Callable[[str], Any] | None = None
    """From text; None for a switch."""
    metavar: str | None = None
    repeated: str | None = None
    """Name of an option that gives one item each time; None: the option is called as the field and given once."""

    @property
    def flag(self) -> str:
        """A name that the engine has too gets a prefix."""
        flag = "--" + (self.repeated or self.field).replace("_", "-")
        return flag.replace("--", "--sampling-", 1) if flag in {option.flag for option in FIELDS} else flag

    def value(self, given: Any) -> Any:
        """The field's value from what argparse found. Raises ConfigError naming the option."""
        if given is None or self.parse is None:
            return given
        if self.repeated is None:
            return _parse(self.flag, self.parse, given)
        items = [_parse(self.flag, self.parse, item) for item in given]
        return _to_mapping(self.flag, items) if self.field == "logit_bias" else items


def _bias(text: str) -> tuple[int, float]:
    token_id, equals, bias = text.partition("=")
    if not equals:
        raise ValueError("expected a token id, =, and what to add to its logit")
    return parsed(int, token_id, "an integer as token id"), parsed(float, bias, "a number to add to its logit")


def _to_mapping(flag: str, pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    result: dict[int, float] = {}
    for token_id, bias in pairs:
        if token_id in result:
            raise ConfigError(f"{flag} is given twice for token id {token_id}")
        result[token_id] = bias
    return result


def _token_ids(text: str) -> tuple[int, ...]:
    return tuple(parsed(int, part, "integers separated by commas") for part in text.split(","))


def _grammar(text: str) -> GrammarSpec:
    kind, equals, source = text.partition("=")
    if not equals:
        raise ValueError("expected a kind such as json or regex, =, and its source or @ and a file")
    return GrammarSpec(kind, read_text(source[1:]) if source.startswith("@") else source)


SAMPLING_OPTIONS = (
    SamplingOption("n", "outputs of every prompt", int),
    SamplingOption("temperature", "below 1e-5 takes the most likely token", float),
    SamplingOption("top_p", "keep the most likely tokens up to this mass", float),
    SamplingOption("top_k", "keep this many most likely tokens; -1 keeps all", int),
    SamplingOption("min_p", "keep tokens of at least this share of the largest probability", float),
    SamplingOption("seed", "seed of every prompt; without it each prompt draws its own from --seed", int),
    SamplingOption("max_tokens", "most output tokens", int),
    SamplingOption("min_tokens", "output tokens before anything but the length can end the output", int),
    SamplingOption("stop", "end the output before this text; may be repeated", str, "TEXT", "stop"),
    SamplingOption("stop_token_ids", "end the output after this token; may be repeated", int, "ID", "stop_token_id"),
    SamplingOption("ignore_eos", "go on after the end-of-sequence token"),
    SamplingOption("presence_penalty", "lower the logits of tokens that the output has", float),
    SamplingOption("frequency_penalty", "lower them by this for every time that the output has them", float),
    SamplingOption("repetition_penalty", "divide the logits of tokens that prompt or output have", float),
    SamplingOption("logit_bias", "add to the logit of a token; may be repeated", _bias, "ID=BIAS", "logit_bias"),
    SamplingOption("bad_words", "keep this text out of the output; may be repeated", str, "TEXT", "bad_word"),
    SamplingOption("logprobs", "report the log-probability of each output token and this many alternatives", int),
    SamplingOption("prompt_logprobs", "the same for the tokens of the prompt", int),
    SamplingOption(
        "structured",
        "what the text must be: json=, regex=, ebnf=, choice= or structural_tag= and its source, or @ and a file",
        _grammar,
        "KIND=SOURCE",
    ),
    SamplingOption(
        "forced_token_ids", "output these token ids, separated by commas; -1 leaves one free", _token_ids, "IDS"
    ),
)
"""One per field of `SamplingParams`."""


def add_engine_options(parser: argparse.ArgumentParser, names: Collection[str] | None = None) -> None:
    """One option per row of the engine's option table, or for those of these names only."""
    group = parser.add_argument_group("engine options", "each is also read from THALWEG_<NAME>, with underscores")
    defaults = EngineConfig().with_defaults(**OFFLINE_DEFAULTS)
    for option in FIELDS:
        if names is not None and option.name not in names:
            continue
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
        given = getattr(arguments, _ENGINE + option.name, None)  # a command may have some of the options only
        if given is None:
            continue
        overrides[option.name] = given if option.is_switch else _parse(option.flag, option.variable.parse, given)
    return EngineConfig.build(**overrides)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """The options of `SAMPLING_OPTIONS`."""
    group = parser.add_argument_group("sampling options", "the same for every prompt")
    defaults = SamplingParams()
    for option in SAMPLING_OPTIONS:
        default = getattr(defaults, option.field)
        text = option.help + ("" if default in (None, ()) else f" (default {_show(default)})")
        settings: dict[str, Any] = {"dest": _SAMPLING + option.field, "default": None, "help": text}
        if option.parse is None:
            group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **settings)
        else:
            action = "store" if option.repeated is None else "append"
            metavar = option.metavar or option.field.rpartition("_")[2].upper()
            group.add_argument(option.flag, action=action, metavar=metavar, **settings)


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters from the given options. Raises ConfigError naming the option."""
    given = {option.field: option.value(getattr(arguments, _SAMPLING + option.field)) for option in SAMPLING_OPTIONS}
    return SamplingParams.from_dict(given)


def _parse(flag: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parsed(parse, text)
    except ValueError as error:
        raise ConfigError(f"{flag} is {shown(text)}: {error}") from None


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value not in ((), "") else "none"
