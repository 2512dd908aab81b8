"""The engine configuration: one table of options, resolved once into a frozen `EngineConfig`.

Three layers fill an option, later ones win: its default, the environment variable `THALWEG_<NAME>`, an argument. What
depends on the checkpoint is settled by `EngineConfig.for_checkpoint`. Where a value came from is kept for display.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar

from thalweg.engine.batch_invariance import check_batch_invariant
from thalweg.engine.fields import FIELDS, Field
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.engine.sections import (
    BackendConfig,
    CacheConfig,
    ReplayConfig,
    is_int,
    path_or_none,
    require_choice,
    require_default,
)
from thalweg.engine.speculation_config import SpeculationConfig
from thalweg.engine.statistics_config import StatisticsConfig
from thalweg.engine.structured_config import StructuredConfig
from thalweg.interfaces import ConfigError, ParallelConfig, shown
from thalweg.scheduler.config import SchedulerConfig


class Origin(enum.Enum):
    """Who set an option."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"
    CHECKPOINT = "checkpoint"


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
    arithmetic: Literal["exact", "float32", "native"] = "exact"
    """Carriers of the reference model, or the model on stored formats: the only one, and so the default, on devices."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Log-probabilities of the model itself, or of the distribution that tokens are drawn from."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    structured: StructuredConfig = field(default_factory=StructuredConfig)
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Flat names whose origin is known; others are arguments if they differ from the default."""

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer"):
            object.__setattr__(self, name, path_or_none(name, getattr(self, name)))
        if not is_int(self.seed) or not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed is {shown(self.seed)}; it must be an integer from 0 to 2**64-1")
        require_choice("mode", self.mode, ("quant", "plain"))
        require_choice("arithmetic", self.arithmetic, ("exact", "float32", "native"))
        if self.arithmetic == "native" and self.mode != "quant":
            raise ConfigError(
                f"mode is {self.mode!r} with arithmetic 'native', which rounds as devices do; mode 'quant' is accepted"
            )
        require_choice("logprobs_mode", self.logprobs_mode, ("raw", "processed"))
        for section, kind in _SECTIONS.items():
            if not isinstance(getattr(self, section), kind):
                raise ConfigError(f"{section} is {shown(getattr(self, section))}; it must be a {kind.__name__}")
        check_batch_invariant(self.backend, self.speculation)
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
        overrides = _set_options(overrides)
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
        overrides = _set_options(overrides)
        return _assign(self, overrides, dict.fromkeys(overrides, Origin.ARGUMENT))

    def with_defaults(self, **defaults: Any) -> Self:
        """This configuration with other defaults: options that somebody set keep their values."""
        _refuse_unknown(defaults)
        unset = {name: value for name, value in defaults.items() if self.origin(name) is Origin.DEFAULT}
        return _assign(self, unset, dict.fromkeys(unset, Origin.DEFAULT))

    def for_checkpoint(self, *, max_position_embeddings: int, draft_length: int = 0) -> Self:
        """Settle what depends on the checkpoint and, where nobody said it, on the backend: overlap and arithmetic.

        draft_length: the most that its drafter proposes per step, 0 without one.
        Raises ConfigError for a max_model_len beyond the positions of the model, and for a draft_length, or an option
        that needs drafts, beyond what the drafter can do.
        """
        values: dict[str, Any] = {}
        longest = self.scheduler.max_model_len
        if longest > max_position_embeddings:
            if self.origin("max_model_len") is not Origin.DEFAULT:
                raise ConfigError(
                    f"max_model_len is {longest}; the checkpoint has max_position_embeddings {max_position_embeddings}"
                )
            values["max_model_len"] = max_position_embeddings
        wanted = self.speculation.draft_length
        if wanted is None:
            values["draft_length"] = draft_length
        elif wanted > draft_length:
            accepted = "the checkpoint has no drafter, so None or 0 is accepted"
            if draft_length:
                accepted = f"the drafter proposes up to {draft_length} tokens"
            raise ConfigError(f"draft_length is {wanted}; {accepted}")
        settled = _assign(self, values, dict.fromkeys(values, Origin.CHECKPOINT))
        if self.backend.name in _IN_PLACE:
            return settled.with_defaults(async_scheduling=False)
        settled = settled.with_defaults(async_scheduling=True, arithmetic="native")
        if settled.arithmetic != "native":
            raise ConfigError(
                f"arithmetic is {settled.arithmetic!r} with backend {self.backend.name!r}; there 'native' is accepted"
            )
        return settled

    def origin(self, name: str) -> Origin:
        """Who set the option of this flat name."""
        if name in self.origins:
            return self.origins[name]
        option = _FIELD_OF[name]
        return Origin.DEFAULT if option.read(self) == option.read(EngineConfig()) else Origin.ARGUMENT

    def resolved(self) -> list[ResolvedOption]:
        """Every option with its value and origin, in the order of the table."""
        return [ResolvedOption(option, option.read(self), self.origin(option.name)) for option in FIELDS]


OFFLINE_DEFAULTS: Mapping[str, Any] = {"stop_preempted_request": False, "log_stats": False}
"""What `LLM` and the command line default to in place of a server's defaults: every prompt is finished, in silence."""

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


def _set_options(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without those that leave the choice to us. Raises ConfigError for an unknown option."""
    _refuse_unknown(overrides)
    return {name: value for name, value in overrides.items() if not (name in _CHOSEN_LATER and value is None)}


def _refuse_unknown(overrides: Mapping[str, Any]) -> None:
    for name in overrides:
        if name in _FIELD_OF:
            continue
        close = difflib.get_close_matches(name, _FIELD_OF, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(sorted(_FIELD_OF))}"
        raise ConfigError(f"unknown option {name!r}; {hint}")


_SECTIONS: dict[str, type] = {
    "sampling": SamplingConfig,
    "scheduler": SchedulerConfig,
    "cache": CacheConfig,
    "parallel": ParallelConfig,
    "speculation": SpeculationConfig,
    "backend": BackendConfig,
    "replay": ReplayConfig,
    "structured": StructuredConfig,
    "statistics": StatisticsConfig,
}

_ALTERNATIVE = {"num_blocks": "memory_fraction", "memory_fraction": "num_blocks"}
"""An argument silences the variable of the option that it replaces."""

_FIELD_OF = {option.name: option for option in FIELDS}

_CHOSEN_LATER = frozenset({"async_scheduling"})
"""Options that None leaves open until the backend is known."""

_IN_PLACE = frozenset({"cpu"})
"""Backends on which steps overlap only if somebody asks: host and device share the processor, so there is little to
gain, and every request costs a row more."""
