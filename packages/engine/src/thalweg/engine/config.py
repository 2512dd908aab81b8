"""The engine configuration: one table of options, resolved once into a frozen `EngineConfig`.

Three layers fill an option, later ones win: its default, the environment variable `THALWEG_<NAME>`, an argument. What
depends on the checkpoint is settled by `EngineConfig.for_checkpoint`. Where a value came from is kept for display.
"""

from __future__ import annotations

import difflib
import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar

from thalweg.engine.sections import (
    BackendConfig,
    CacheConfig,
    ReplayConfig,
    SpeculationConfig,
    is_int,
    require_choice,
    require_default,
)
from thalweg.engine.statistics_config import StatisticsConfig
from thalweg.interfaces import ConfigError, ParallelConfig, Variable, parse_bool, shown
from thalweg.scheduler.config import SchedulerConfig


class Origin(enum.Enum):
    """Who set an option."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Field:
    """One option: its flat name, where it lives in `EngineConfig`, and how text becomes its value."""

    name: str
    """The keyword of `LLM` and, with dashes, the option of the command line."""
    section: str
    """Attribute of `EngineConfig` that holds it; empty for its own attributes."""
    attribute: str
    parse: Callable[[str], Any]
    help: str
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> Variable[Any]:
        return Variable(self.name.upper(), self._parse_choice, self.help)

    @property
    def is_switch(self) -> bool:
        return self.parse is parse_bool

    def _parse_choice(self, text: str) -> Any:
        value = self.parse(text)
        if self.choices and value not in self.choices:
            raise ValueError(f"expected {' or '.join(self.choices)}")
        return value

    def read(self, config: EngineConfig) -> Any:
        """The value this option has in a configuration."""
        owner = getattr(config, self.section) if self.section else config
        return getattr(owner, self.attribute)


@dataclass(frozen=True, slots=True)
class ResolvedOption:
    """One line of `thalweg config`."""

    field: Field
    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything about a deployment that is not in the checkpoint and not in a request.

    Build it with `EngineConfig.build`, which understands flat names and the environment; the constructor takes the
    sections as they are and reads no environment. Raises ConfigError naming option, value and what is accepted.
    """

    model: str | None = None
    """Checkpoint directory. None: the checkpoint of the distribution thalweg-tiny."""
    tokenizer: str | None = None
    """tokenizer.json or its directory. None: the checkpoint's own."""
    seed: int = 0
    """Seeds of requests that bring none are drawn from it."""
    mode: Literal["quant", "plain"] = "quant"
    arithmetic: Literal["exact", "float32"] = "exact"
    logprobs_mode: Literal["raw", "processed"] = "raw"
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Flat names whose origin is known; others are arguments if they differ from the default."""

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
                object.__setattr__(self, name, value)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{name} is {shown(value)}; it must be None or a path")
        if not is_int(self.seed) or not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed is {shown(self.seed)}; it must be an integer from 0 to 2**64-1")
        require_choice("mode", self.mode, ("quant", "plain"))
        require_choice("arithmetic", self.arithmetic, ("exact", "float32"))
        require_choice("logprobs_mode", self.logprobs_mode, ("raw", "processed"))
        require_default("logprobs_mode", self.logprobs_mode, "raw", "this version returns no log-probabilities")
        for section, kind in _SECTIONS.items():
            if not isinstance(getattr(self, section), kind):
                raise ConfigError(f"{section} is {shown(getattr(self, section))}; it must be a {kind.__name__}")
        reason = "this version hands no prompts from engine to engine"
        require_default("engine_type", self.scheduler.engine_type, "normal", reason)
        if self.scheduler.policy == "reference" and self.scheduler.lookahead_tokens > 1:
            raise ConfigError(
                f"lookahead_tokens is {self.scheduler.lookahead_tokens}; with policy 'reference' it must be 0 or 1, "
                "because shorter prompts would wait for ever"
            )

    @classmethod
    def build(cls, *, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Resolve the options from defaults, environment and flat keyword arguments.

        environ: the variables to read, those of the process if None.
        Raises ConfigError for an unknown option (with close matches), a bad value or a bad variable.
        """
        _refuse_unknown(overrides)
        values: dict[str, Any] = {}
        origins: dict[str, Origin] = {}
        for option in FIELDS:
            if option.name in overrides:
                values[option.name], origins[option.name] = overrides[option.name], Origin.ARGUMENT
                continue
            if _ALTERNATIVE.get(option.name) in overrides:
                continue
            text_value = option.variable.read(environ)
            if text_value is not None:
                values[option.name], origins[option.name] = text_value, Origin.ENVIRONMENT
        try:
            return _assign(cls(), values, origins)
        except ConfigError as error:
            for name, origin in origins.items():
                if origin is Origin.ENVIRONMENT and str(error).startswith(f"{name} "):
                    raise ConfigError(f"{error} (set by {_FIELD_OF[name].variable.full_name})") from error
            raise

    def with_options(self, **overrides: Any) -> Self:
        """This configuration with some options, given by flat name, replaced."""
        _refuse_unknown(overrides)
        return _assign(self, overrides, dict.fromkeys(overrides, Origin.ARGUMENT))

    def with_defaults(self, **defaults: Any) -> Self:
        """This configuration with other defaults: options that somebody set keep their values."""
        _refuse_unknown(defaults)
        unset = {name: value for name, value in defaults.items() if self.origin(name) is Origin.DEFAULT}
        return _assign(self, unset, dict.fromkeys(unset, Origin.DEFAULT))

    def for_checkpoint(self, *, max_position_embeddings: int, draft_length: int = 0) -> Self:
        """Settle what depends on the checkpoint.

        draft_length: what its drafter proposes per step, 0 without one.
        Raises ConfigError for a max_model_len beyond the positions of the model.
        """
        values: dict[str, Any] = {}
        longest = self.scheduler.max_model_len
        if longest > max_position_embeddings:
            if self.origin("max_model_len") is not Origin.DEFAULT:
                raise ConfigError(
                    f"max_model_len is {longest}; the checkpoint has max_position_embeddings {max_position_embeddings}"
                )
            values["max_model_len"] = max_position_embeddings
        if self.speculation.draft_length is None:
            values["draft_length"] = draft_length
        return _assign(self, values, dict.fromkeys(values, Origin.CHECKPOINT))

    def origin(self, name: str) -> Origin:
        """Who set the option of this flat name."""
        if name in self.origins:
            return self.origins[name]
        option = _FIELD_OF[name]
        return Origin.DEFAULT if option.read(self) == option.read(EngineConfig()) else Origin.ARGUMENT

    def resolved(self) -> list[ResolvedOption]:
        """Every option with its value and origin, in the order of the table."""
        return [ResolvedOption(option, option.read(self), self.origin(option.name)) for option in FIELDS]


_Config = TypeVar("_Config", bound=EngineConfig)


def _assign(config: _Config, values: Mapping[str, Any], origins: Mapping[str, Origin]) -> _Config:
    """A copy of a configuration with the options of these flat names replaced, a section at a time."""
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        option = _FIELD_OF[name]
        changes.setdefault(option.section, {})[option.attribute] = value
    own = changes.pop("", {})
    sections = {section: replace(getattr(config, section), **change) for section, change in changes.items()}
    return replace(config, **own, **sections, origins={**config.origins, **origins})


def _refuse_unknown(overrides: Mapping[str, Any]) -> None:
    for name in overrides:
        if name in _FIELD_OF:
            continue
        close = difflib.get_close_matches(name, _FIELD_OF, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(sorted(_FIELD_OF))}"
        raise ConfigError(f"unknown option {name!r}; {hint}")


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("expected a non-empty text")
    return text


def _parse_optional_int(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


def _parse_optional_float(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


def _parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(op and equals and provider for op, equals, provider in pairs):
        raise ValueError("expected op=provider pairs separated by commas")
    return tuple((op.strip(), provider.strip()) for op, _, provider in pairs)


def _parse_floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part)


_SECTIONS: dict[str, type] = {
    "scheduler": SchedulerConfig,
    "cache": CacheConfig,
    "parallel": ParallelConfig,
    "speculation": SpeculationConfig,
    "backend": BackendConfig,
    "replay": ReplayConfig,
    "statistics": StatisticsConfig,
}

FIELDS: tuple[Field, ...] = (
    Field("model", "", "model", _parse_text, "checkpoint directory; without it the checkpoint of thalweg-tiny"),
    Field("tokenizer", "", "tokenizer", _parse_text, "tokenizer.json or its directory; without it the checkpoint's"),
    Field("seed", "", "seed", int, "seeds of requests that bring none are drawn from it"),
    Field("mode", "", "mode", _parse_text, "roundings of the model: as on devices, or none", ("quant", "plain")),
    Field("arithmetic", "", "arithmetic", _parse_text, "carriers on the CPU: double or float", ("exact", "float32")),
    Field(
        "logprobs_mode",
        "",
        "logprobs_mode",
        _parse_text,
        "log-probabilities before or after temperature and filters",
        ("raw", "processed"),
    ),
    Field("max_num_seqs", "scheduler", "max_num_seqs", int, "most sequences that decode at once"),
    Field(
        "max_num_batched_tokens",
        "scheduler",
        "max_num_batched_tokens",
        _parse_optional_int,
        "most query tokens of one step",
    ),
    Field("max_model_len", "scheduler", "max_model_len", int, "longest sequence, prompt and output together"),
    Field("chunked_prefill", "scheduler", "chunked_prefill", parse_bool, "spread long prompts over several steps"),
    Field(
        "stop_preempted_request",
        "scheduler",
        "stop_preempted_request",
        parse_bool,
        "end preempted requests instead of recomputing them",
    ),
    Field(
        "prefill_max_sum_seqlen_k",
        "scheduler",
        "prefill_max_sum_seqlen_k",
        int,
        "most prompt tokens, in full length, of one prefill step",
    ),
    Field("lookahead_tokens", "scheduler", "lookahead_tokens", int, "shortest chunk worth a prefill step"),
    Field(
        "prefill_interval_all",
        "scheduler",
        "prefill_interval_all",
        int,
        "decode steps between votes of which all ranks must want a prefill",
    ),
    Field(
        "prefill_interval_any",
        "scheduler",
        "prefill_interval_any",
        int,
        "decode steps between votes of which one rank must want a prefill",
    ),
    Field(
        "prefill_interval_continue",
        "scheduler",
        "prefill_interval_continue",
        int,
        "decode steps between votes while a prompt is half computed",
    ),
    Field("policy", "scheduler", "policy", _parse_text, "scheduling rules", ("default", "reference")),
    Field(
        "engine_type",
        "scheduler",
        "engine_type",
        _parse_text,
        "prefill and decode, or one of them",
        ("normal", "prompt", "completion"),
    ),
    Field(
        "async_scheduling",
        "scheduler",
        "async_scheduling",
        parse_bool,
        "launch each decode step before the result of the last",
    ),
    Field(
        "num_blocks", "cache", "num_blocks", _parse_optional_int, "cache blocks of 128 tokens, the null one included"
    ),
    Field("memory_fraction", "cache", "memory_fraction", float, "share of the device memory for the cache"),
    Field("slot_ratio", "cache", "slot_ratio", float, "state slots per sequence that may run"),
    Field("expert_parallel_size", "parallel", "expert", int, "ranks that share the experts"),
    Field("data_parallel_size", "parallel", "data", int, "ranks that schedule requests of their own"),
    Field("context_parallel_size", "parallel", "context", int, "ranks that share one sequence's context"),
    Field("engram_parallel_size", "parallel", "engram", int, "ranks that share the Engram tables"),
    Field("draft_length", "speculation", "draft_length", _parse_optional_int, "draft tokens per step"),
    Field("variable_length", "speculation", "variable_length", parse_bool, "verify by confidence, not a fixed length"),
    Field(
        "verification",
        "speculation",
        "verification",
        _parse_text,
        "how drafts are accepted",
        ("rejection", "coupled"),
    ),
    Field(
        "draft_positions",
        "speculation",
        "draft_positions",
        _parse_text,
        "random stream of the drafts",
        ("per_step", "absolute"),
    ),
    Field(
        "confidence_temperatures",
        "speculation",
        "confidence_temperatures",
        _parse_floats,
        "calibration of the drafter's confidence",
    ),
    Field("backend", "backend", "name", _parse_text, "device that runs the model", ("cpu", "sm90", "sm100", "ascend")),
    Field("kernels", "backend", "kernels", _parse_pairs, "op=provider pairs that override the kernel selection"),
    Field("batch_invariant", "backend", "batch_invariant", parse_bool, "demand logits that do not depend on the batch"),
    Field("graphs", "backend", "graphs", parse_bool, "capture decode steps as graphs where the backend has graphs"),
    Field("sync_guard", "backend", "sync_guard", parse_bool, "refuse to wait for the device while launching a step"),
    Field("check_lengths", "backend", "check_lengths", parse_bool, "compare lengths on device and host in every step"),
    Field("replay", "replay", "mode", _parse_text, "bounded replay of long prompts", ("off", "mask", "compact")),
    Field("replay_keep_tokens", "replay", "keep_tokens", int, "prompt tokens that the consumer layers recompute"),
    Field("log_stats", "statistics", "log_stats", parse_bool, "log a line of statistics every so many steps"),
    Field("logging_interval_steps", "statistics", "logging_interval_steps", int, "steps between two such lines"),
    Field("peak_tflops", "statistics", "peak_tflops", _parse_optional_float, "FP8 peak of a device, for utilisation"),
    Field("metrics", "statistics", "metrics", parse_bool, "count for Prometheus (needs thalweg-engine[metrics])"),
    Field("profile_port", "statistics", "profile_port", _parse_optional_int, "port of the profile server"),
    Field("profile_dir", "statistics", "profile_dir", _parse_text, "directory of profiles"),
)
"""Every option, in the order in which it is shown."""

_ALTERNATIVE = {"num_blocks": "memory_fraction", "memory_fraction": "num_blocks"}
"""An argument silences the variable of the option that it replaces."""

_FIELD_OF = {option.name: option for option in FIELDS}
