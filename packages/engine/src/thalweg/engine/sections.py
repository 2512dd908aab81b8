"""The sections of the engine configuration that the engine itself owns, each with its own checks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

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


def path_or_none(name: str, value: object) -> str | None:
    """A path as text. Raises ConfigError for what is neither None nor a path."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is None or (isinstance(path, str) and path and "\0" not in path):
        return path
    raise ConfigError(f"{name} is {shown(path)}; it must be None or a path")


def is_int(value: object) -> bool:
    """Whether this is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether this is a finite int or float and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How much memory the cache gets: a number of blocks, or a share of the device's memory."""

    num_blocks: int | None = None
    """Cache blocks, the null block included. None: as many as full use needs, within the memory fraction."""
    memory_fraction: float | None = None
    """Share of the memory for the cache. On the CPU of all of it, None meaning 0.5; on a device of what the model and
    its largest steps do not take, these included, None meaning 0.9."""
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
        if fraction is not None and not (is_number(fraction) and 0 < fraction <= 1):
            raise ConfigError(f"memory_fraction is {shown(fraction)}; it must be None or in (0, 1]")
        if not (is_number(self.slot_ratio) and 1 <= self.slot_ratio < 1 << 31):
            raise ConfigError(f"slot_ratio is {shown(self.slot_ratio)}; it must be from 1.0 to 2**31")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Which device runs the model and which implementation serves each op."""

    name: str = "cpu"
    kernels: tuple[tuple[str, str], ...] = ()
    """(op, provider) pairs that override the selection of the kernel registry."""
    batch_invariant: bool = False
    """Demand logits that do not depend on the batch, and refuse options that make text depend on it all the same; the
    logits of the CPU backend never do."""
    graphs: bool = True
    """Capture decode steps as graphs where the backend has graphs; the CPU has none."""
    graph_interval: int = 8
    """Decode steps are padded to a multiple of so many query tokens, or a power of two below it: graphs of these sizes
    are captured, up to what a step can have."""
    draft_graph_interval: int = 8
    """The same in sequences, for what the drafter computes."""
    sync_guard: bool = True
    """Make it an error to wait for the device while a step is being launched."""
    check_lengths: bool = False
    """Compare the device's context lengths with the scheduler's in every asynchronous step."""

    def __post_init__(self) -> None:
        require_choice("backend", self.name, BACKEND_NAMES)
        if not isinstance(self.kernels, tuple) or not all(_is_pair(pair) for pair in self.kernels):
            raise ConfigError(f"kernels is {shown(self.kernels)}; it must be (op, provider) pairs of strings")
        taken: dict[str, str] = {}
        for op, provider in self.kernels:
            if op in taken:
                raise ConfigError(
                    f"kernels names {shown(op)} twice, with {shown(taken[op])} and {shown(provider)}; give each op once"
                )
            taken[op] = provider
        for name in ("graph_interval", "draft_graph_interval"):
            value = getattr(self, name)
            if not is_int(value) or not 1 <= value < 1 << 31:
                raise ConfigError(f"{name} is {shown(value)}; it must be an integer from 1 to 2**31-1")
        for name in ("batch_invariant", "graphs", "sync_guard", "check_lengths"):
            require_bool(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Bounded replay of prompts, bounded_replay.md 3. That the numbers fit the model is checked with the model."""

    mode: Literal["off", "mask", "compact"] = "off"
    """off: every layer computes every token of a prompt. compact: the consumer layers compute its end only. mask: they
    compute all and see what compact sees, the yardstick of compact."""
    keep_tokens: int = 0
    """How long that end is: at least the window and what drafts can take back. Without meaning where mode is off."""

    def __post_init__(self) -> None:
        require_choice("replay", self.mode, ("off", "mask", "compact"))
        if not is_int(self.keep_tokens) or not 0 <= self.keep_tokens < 1 << 31:
            raise ConfigError(
                f"replay_keep_tokens is {shown(self.keep_tokens)}; it must be an integer from 0 to 2**31-1"
            )


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value)
