"""What the FLOPs of a model depend on: its sizes, its formats and what each layer's attention does."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from thalweg.interfaces import ConfigError, shown

ReplayMode = Literal["off", "mask", "compact"]

MAX_LAYERS = 1024
MAX_SIZE = 1 << 20
"""Largest width, count or ratio of a model; it bounds every product, so that 128 bits hold each sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsLayer:
    """What one layer's attention computes. Raises ConfigError naming the field."""

    compress_ratio: int = 0
    """Tokens per entry of the compressed KV; 0 = the layer has none."""
    has_window: bool = True
    """The layer has sliding-window keys of its own."""
    topk: int = 0
    """Most compressed entries that a query attends to; 0 = all of them."""
    index_heads: int = 0
    index_head_dim: int = 0
    is_kv_source: bool = False
    """The layer writes compressed KV, and others may read it."""
    is_index_source: bool = False
    """The layer scores the index keys; layers behind it use its choice."""
    is_index_key_source: bool = False
    """The layer projects its compressed KV to index keys."""
    candidate_blocks: int = 0
    """Blocks that the index scores are limited to; 0 = all entries are scored."""
    candidate_block_size: int = 0
    """Compressed entries of one such block."""

    def __post_init__(self) -> None:
        for name in ("compress_ratio", "topk", "index_heads", "index_head_dim", "candidate_blocks"):
            _require_size(self, name, at_least=0)
        for name in ("has_window", "is_kv_source", "is_index_source", "is_index_key_source"):
            _require_bool(self, name)
        _require_size(self, "candidate_block_size", at_least=1 if self.candidate_blocks else 0)
        scores = self.topk > 0 and self.is_index_source
        if self.compress_ratio == 0 and (self.is_kv_source or scores):
            raise ConfigError("compress_ratio is 0; a KV source and an index source need at least 1")

    @property
    def runs_indexer(self) -> bool:
        """Whether the layer chooses compressed entries itself."""
        return self.topk > 0 and self.is_index_source


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsModel:
    """The sizes of a model that its FLOPs depend on. Raises ConfigError naming field, value and what is accepted."""

    hidden_size: int
    vocab_size: int
    num_heads: int
    head_dim: int
    query_rank: int
    output_rank: int
    output_groups: int
    window_size: int
    expert_size: int
    """Intermediate width of one expert."""
    experts_per_token: int
    shared_experts: int
    routed_experts: int
    layers: tuple[FlopsLayer, ...]
    first_consumer_layer: int
    """Layers before it are producers; the number of layers = no consumers."""
    hyper_connections: int = 0
    """Copies of the residual stream; 0 = plain residuals."""
    shifted_hyper_connections: bool = True
    engram_layers: tuple[int, ...] = ()
    engram_width: int = 0
    """Embedding width of an Engram layer, summed over its n-gram sizes."""
    fp8_attention: bool = True
    fp8_experts: bool = True
    fp8_engram: bool = True
    fp4_indexer: bool = True
    replay: ReplayMode = "off"
    replay_keep_tokens: int = 0
    """Last prompt tokens that the consumer layers compute."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.type == "int":
                _require_size(self, item.name, at_least=0 if item.name in _MAY_BE_ZERO else 1)
            elif item.type == "bool":
                _require_bool(self, item.name)
        if not isinstance(self.layers, tuple) or not all(isinstance(layer, FlopsLayer) for layer in self.layers):
            raise ConfigError(f"layers is {shown(self.layers)}; it must be a tuple of FlopsLayer")
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise ConfigError(f"layers has {len(self.layers)} items; it must have 1 to {MAX_LAYERS}")
        if self.first_consumer_layer > len(self.layers):
            raise ConfigError(
                f"first_consumer_layer is {self.first_consumer_layer}; it must be at most the number of layers, "
                f"{len(self.layers)}"
            )
        self._check_engram()
        if not isinstance(self.replay, str) or self.replay not in ("off", "mask", "compact"):
            raise ConfigError(f"replay is {shown(self.replay)}; it must be 'off', 'mask' or 'compact'")

    def _check_engram(self) -> None:
        layers = self.engram_layers
        known = range(len(self.layers))
        if (
            not isinstance(layers, tuple)
            or not all(_is_int(layer) and layer in known for layer in layers)
            or len(set(layers)) != len(layers)
        ):
            raise ConfigError(f"engram_layers is {shown(layers)}; it must be a tuple of different layers of {known}")
        if layers and not self.engram_width:
            raise ConfigError("engram_width is 0; with engram_layers it must be at least 1")


_MAY_BE_ZERO = ("shared_experts", "first_consumer_layer", "hyper_connections", "engram_width", "replay_keep_tokens")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_size(owner: Any, name: str, *, at_least: int) -> None:
    value = getattr(owner, name)
    most = (1 << 31) - 1 if name in ("vocab_size", "replay_keep_tokens") else MAX_SIZE
    if not _is_int(value) or not at_least <= value <= most:
        raise ConfigError(f"{name} is {shown(value)}; it must be an integer from {at_least} to {most}")


def _require_bool(owner: Any, name: str) -> None:
    value = getattr(owner, name)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}; it must be True or False")
