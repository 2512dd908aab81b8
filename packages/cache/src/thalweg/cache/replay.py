"""Bounded replay: how little of a prompt has to run where window keys are not kept, and where a sequence then starts.

Producer layers come before the first ratio-1 layer, consumer layers are it and all behind it. A consumer layer keeps
nothing of a token but its window key, so in a prefill it need only run over the last tokens of the prompt (consumer
replay). After a prefix hit that brought blocks and no window state, the producer layers run once more over the last
window of the hit (producer replay).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from thalweg.cache.geometry import CacheGeometry
from thalweg.interfaces import ConfigError


class ReplayMode(enum.Enum):
    """What consumer layers do with the rows of a prompt before the kept range."""

    OFF = "off"
    """They run like all others."""
    MASK = "mask"
    """They run and are seen by nobody: the yardstick of `COMPACT`, which saves nothing."""
    COMPACT = "compact"
    """They are removed before the first consumer layer."""


@dataclass(frozen=True, slots=True)
class ConsumerReplay:
    """How much of a prompt the consumer layers run over; `of` checks it against a model."""

    mode: ReplayMode
    keep_tokens: int
    """Last tokens of the sequence whose rows are kept; without meaning when the mode is off."""

    @classmethod
    def of(cls, geometry: CacheGeometry, mode: str, keep_tokens: int) -> ConsumerReplay:
        """The checked choice for a model. Raises ConfigError if consumer layers cannot work with it."""
        accepted = [member.value for member in ReplayMode]
        if mode not in accepted:
            raise ConfigError(f"replay mode is {mode!r}; {', '.join(accepted)} are accepted")
        replay = cls(ReplayMode(mode), keep_tokens)
        if replay.mode is ReplayMode.OFF:
            return replay
        if 1 not in geometry.compress_ratios or geometry.num_stored_layers == 0:
            raise ConfigError(
                f"replay mode is {mode}; it needs layers of ratio 1 behind others, compress_ratios is "
                f"{geometry.compress_ratios}"
            )
        least = min_keep_tokens(geometry)
        if keep_tokens < least:
            raise ConfigError(
                f"keep_tokens is {keep_tokens}; with window {geometry.window_size} and backtracking "
                f"{geometry.backtracking} it must be at least {least}"
            )
        return replay


def min_keep_tokens(geometry: CacheGeometry) -> int:
    """Fewest kept tokens: as many as can be undone after the prefill must leave a whole window."""
    return geometry.window_size + geometry.backtracking


def exact_keep_tokens(geometry: CacheGeometry) -> int:
    """Kept tokens with which the last window of every consumer layer is exact: a window, and its reach per layer.

    A row is exact in the first consumer's stream whatever is kept; each further layer loses W - 1 rows of the front.
    """
    consumers = geometry.num_layers - geometry.num_stored_layers
    reach = max(geometry.window_size - 1, 0) * max(consumers - 1, 0)
    return max(geometry.window_size + reach, min_keep_tokens(geometry))


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """Where a sequence begins to compute, and what it may read; the first chunk's arguments, kept for all chunks."""

    num_tokens: int = 0
    """First position to compute."""
    window_valid_start: int = 0
    """First position whose producer window keys exist or will."""
    consumer_first: int = 0
    """First position that the consumer layers ever run over."""
    reused_tokens: int = 0
    """Tokens whose blocks are there already and must stay as they are."""

    @property
    def replayed_tokens(self) -> int:
        """Tokens of the hit that run once more."""
        return self.reused_tokens - self.num_tokens

    @property
    def exact_from(self) -> int:
        """First position whose producer window key may be stored: replayed ones are approximations."""
        return self.reused_tokens if self.replayed_tokens else 0


def start_after_hit(
    geometry: CacheGeometry, replay: ConsumerReplay, hit_length: int, *, has_window_state: bool
) -> SequenceStart:
    """Where a sequence starts whose first `hit_length` tokens have their blocks; 0 = it starts cold.

    has_window_state: the producers' windows at `hit_length` are restored too. Without them the last window of the hit
    is replayed. Raises ConfigError for a length that is no whole number of blocks or saves nothing, and for a restored
    window in mode off, where nothing would rebuild those of the consumers.
    """
    if hit_length < 0 or hit_length % geometry.tokens_per_block:
        raise ConfigError(f"hit_length is {hit_length}; a multiple of {geometry.tokens_per_block} is needed")
    if hit_length == 0:
        return SequenceStart()
    if has_window_state:
        if replay.mode is ReplayMode.OFF:
            raise ConfigError("replay mode is off; a restored window needs mask or compact, it lacks the consumers'")
        return SequenceStart(hit_length, 0, hit_length, hit_length)
    if hit_length <= geometry.window_size:
        raise ConfigError(
            f"hit_length is {hit_length}; without window state it must exceed the window, {geometry.window_size}"
        )
    first = hit_length - geometry.window_size
    return SequenceStart(first, first, first, hit_length)
