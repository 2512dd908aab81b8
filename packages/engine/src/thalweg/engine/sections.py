"""The sections of the engine configuration that the engine itself owns, each with its own checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from thalweg.dspark import parse_temperatures
from thalweg.interfaces import ConfigError, is_same, shown
from thalweg.interfaces.backend import BACKEND_NAMES


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ConfigError unless the value is one of the choices."""
    if not any(is_same(value, choice) for choice in choices):
        accepted = " or ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{name} is {shown(value)}; it must be {accepted}")


def require_bool(name: str, value: object) -> None:
    """Raise ConfigError unless the value is a bool."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}; it must be True or False")


def require_default(name: str, value: object, default: object, reason: str) -> None:
    """Raise ConfigError for an option whose feature does not exist yet and that is not at its default."""
    if not is_same(value, default):
        raise ConfigError(f"{name} is {shown(value)}; only {default!r} is accepted, {reason}")


def is_int(value: object) -> bool:
    """Whether this is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How much memory the cache gets: a number of blocks, or a share of the device's memory."""

    num_blocks: int | None = None
    """Cache blocks, the null block included. None: as many as full use needs, within the memory fraction."""
    memory_fraction: float | None = None
    """Share of the device memory that cache blocks and state slots may take. None: 0.5 on the CPU."""
    slot_ratio: float = 1.2
    """State slots per sequence that may run; the margin is for half-prefilled sequences and delayed releases."""

    def __post_init__(self) -> None:
        fraction = self.memory_fraction
        if self.num_blocks is not None:
            if not is_int(self.num_blocks) or not 2 <= self.num_blocks < 1 << 31:
                raise ConfigError(
                    f"num_blocks is {shown(self.num_blocks)}; it must be None or an integer from 2 to 2**31-1"
                )
            if fraction is not None:
                raise ConfigError(
                    f"num_blocks is {self.num_blocks} and memory_fraction is {shown(fraction)}; give one of them"
                )
        if fraction is not None and not (_is_number(fraction) and 0 < fraction <= 1):
            raise ConfigError(f"memory_fraction is {shown(fraction)}; it must be None or in (0, 1]")
        if not (_is_number(self.slot_ratio) and 1 <= self.slot_ratio < 1 << 31):
            raise ConfigError(f"slot_ratio is {shown(self.slot_ratio)}; it must be from 1.0 to 2**31")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How drafts are proposed and verified."""

    draft_length: int | None = None
    """Draft tokens per step. None: what the checkpoint's drafter was trained for, 0 without a drafter."""
    variable_length: bool = False
    """Verify as many drafts as pay, by confidence and step time, and not all of them."""
    verification: Literal["rejection", "coupled"] = "rejection"
    """By rejection sampling, or by matching tokens that depend on seed and index alone."""
    draft_positions: Literal["per_step", "absolute"] = "per_step"
    """Random numbers of a draft: new in every step, or by its index, which is biased with variable_length."""
    confidence_temperatures: tuple[float, ...] = ()
    """Divide the drafter's confidence logits: one for all drafts, or one each; none means 1."""

    def __post_init__(self) -> None:
        length = self.draft_length
        if length is not None and (not is_int(length) or not 0 <= length < 1 << 31):
            raise ConfigError(f"draft_length is {shown(length)}; it must be None or an integer from 0 to 2**31-1")
        require_bool("variable_length", self.variable_length)
        require_choice("verification", self.verification, ("rejection", "coupled"))
        require_choice("draft_positions", self.draft_positions, ("per_step", "absolute"))
        if not isinstance(self.confidence_temperatures, tuple):
            raise ConfigError(
                f"confidence_temperatures is {shown(self.confidence_temperatures)}; it must be a tuple of numbers"
            )
        self.temperatures(length or max(1, len(self.confidence_temperatures)))
        if length == 0 and self.variable_length:
            raise ConfigError("variable_length is True with draft_length 0; without drafts there is no length to vary")

    def temperatures(self, draft_length: int) -> tuple[float, ...]:
        """One for each of so many drafts, at least 1. Raises ConfigError for another number of values, and bad ones."""
        try:
            return parse_temperatures(self.confidence_temperatures, draft_length)
        except ConfigError as error:
            raise ConfigError(f"confidence_temperatures is {shown(self.confidence_temperatures)}; {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Which device runs the model and which implementation serves each op."""

    name: str = "cpu"
    kernels: tuple[tuple[str, str], ...] = ()
    """(op, provider) pairs that override the selection of the kernel registry."""
    batch_invariant: bool = False
    """Demand logits that do not depend on the batch; the CPU backend always delivers that."""
    graphs: bool = True
    """Capture decode steps as graphs where the backend has graphs; the CPU has none."""
    sync_guard: bool = True
    """Make it an error to wait for the device while a step is being launched."""
    check_lengths: bool = False
    """Compare the device's context lengths with the scheduler's in every asynchronous step."""

    def __post_init__(self) -> None:
        require_choice("backend", self.name, BACKEND_NAMES)
        if not isinstance(self.kernels, tuple) or not all(_is_pair(pair) for pair in self.kernels):
            raise ConfigError(f"kernels is {shown(self.kernels)}; it must be (op, provider) pairs of strings")
        for name in ("batch_invariant", "graphs", "sync_guard", "check_lengths"):
            require_bool(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Bounded replay of long prompts: not available in this version, so only `off`."""

    mode: Literal["off", "mask", "compact"] = "off"
    keep_tokens: int = 0

    def __post_init__(self) -> None:
        reason = "this version has no bounded replay"
        require_choice("replay", self.mode, ("off", "mask", "compact"))
        require_default("replay", self.mode, "off", reason)
        require_default("replay_keep_tokens", self.keep_tokens, 0, reason)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value)
