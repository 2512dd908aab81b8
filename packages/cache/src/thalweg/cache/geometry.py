"""The facts about a model and a deployment that decide the cache layout, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from thalweg.interfaces import ConfigError
from thalweg.kernels import RecordFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGeometry:
    """What a layout needs to know. Every field is checked on construction; a ConfigError names the bad one."""

    num_layers: int
    """Backbone layers."""
    compress_ratios: tuple[int, ...]
    """[num_layers] 0 = window only, 1 or 2 = tokens per entry of the compressed stream that the layer reads."""
    kv_source_layers: tuple[int, ...]
    """Layers that own a compressed stream; a later layer reads the nearest one at or before it."""
    index_key_source_layers: tuple[int, ...]
    """Layers that own index keys; every KV source is one."""
    head_dim: int
    """Width of a KV row."""
    index_head_dim: int
    """Width of an index key."""
    window_size: int
    """Positions a query sees in its window; 0 = the model has no window."""
    num_draft_layers: int = 0
    """Layers of the drafter; they have a window ring each and run as layers num_layers, num_layers + 1, ..."""
    draft_length: int = 0
    """Tokens drafted per step."""
    max_backtracking: int = 0
    """Tokens a step may undo, if more than draft_length + 1."""
    tokens_per_block: int = 128
    extra_ring: int = 0
    """Further ring positions that a prefill engine keeps in order to save an earlier window."""
    fp4_main: bool = True
    """Main KV as FP4 records; false: MXFP8 records."""
    plain: bool = False
    """Keep raw float64 rows instead of the quantised records."""
    model_key: str = ""
    """Names what the layout cannot see and cached values depend on: model revision, rotary parameters."""

    def __post_init__(self) -> None:
        for name in ("compress_ratios", "kv_source_layers", "index_key_source_layers"):
            object.__setattr__(self, name, tuple(int(value) for value in getattr(self, name)))
        self._check_numbers()
        self._check_sources()

    @property
    def num_run_time_layers(self) -> int:
        """Backbone layers and draft layers."""
        return self.num_layers + self.num_draft_layers

    @property
    def num_stored_layers(self) -> int:
        """Layers before the first ratio-1 layer: a store keeps their windows. All backbone layers if there is none."""
        return self.compress_ratios.index(1) if 1 in self.compress_ratios else self.num_layers

    @property
    def backtracking(self) -> int:
        """Positions that one step may write beyond the committed length, and later overwrite."""
        return max(self.max_backtracking, self.draft_length + 1)

    @property
    def ring_length(self) -> int:
        """Positions in a window ring; 0 without a window."""
        return self.window_size + self.backtracking + self.extra_ring if self.window_size else 0

    @property
    def pooling_layers(self) -> tuple[int, ...]:
        """KV sources whose entries pool several tokens; they keep a compressor ring."""
        return tuple(layer for layer in self.kv_source_layers if self.compress_ratios[layer] > 1)

    @property
    def compressor_ring_length(self) -> int:
        """Positions in a compressor ring; 0 if no layer pools."""
        ratios = [self.compress_ratios[layer] for layer in self.pooling_layers]
        return max(ratios) + self.backtracking - 1 if ratios else 0

    @property
    def ratios(self) -> tuple[int, ...]:
        """The compress ratios in use, ascending, without 0."""
        return tuple(sorted({ratio for ratio in self.compress_ratios if ratio}))

    @property
    def window_format(self) -> RecordFormat:
        """Format of window records."""
        return RecordFormat.FLOAT64 if self.plain else RecordFormat.MXFP8

    @property
    def main_format(self) -> RecordFormat:
        """Format of compressed KV records."""
        if self.plain:
            return RecordFormat.FLOAT64
        return RecordFormat.FP4_MAIN if self.fp4_main else RecordFormat.MXFP8

    @property
    def index_format(self) -> RecordFormat:
        """Format of index-key records."""
        return RecordFormat.FLOAT64 if self.plain else RecordFormat.MXFP4_INDEX

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed stream `layer` reads; None if it reads none."""
        return self._nearest(self.kv_source_layers, layer)

    def index_key_source(self, layer: int) -> int | None:
        """The layer whose index keys `layer` scores; None if it has no compressed stream."""
        return self._nearest(self.index_key_source_layers, layer)

    def _nearest(self, sources: Sequence[int], layer: int) -> int | None:
        if not 0 <= layer < self.num_run_time_layers:
            raise ConfigError(f"layer is {layer}; 0..{self.num_run_time_layers - 1} are accepted")
        if layer >= self.num_layers or self.compress_ratios[layer] == 0:
            return None
        return max((source for source in sources if source <= layer), default=None)

    def _check_numbers(self) -> None:
        lowest = {"num_layers": 1, "head_dim": 32, "index_head_dim": 32, "tokens_per_block": 1}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < lowest.get(field.name, 0)):
                raise ConfigError(f"{field.name} is {value!r}; an integer from {lowest.get(field.name, 0)} is needed")
        for name in ("head_dim", "index_head_dim"):
            if getattr(self, name) % 32:
                raise ConfigError(f"{name} is {getattr(self, name)}; a multiple of 32 is needed")
        if len(self.compress_ratios) != self.num_layers:
            raise ConfigError(
                f"compress_ratios has {len(self.compress_ratios)} entries; one per backbone layer, {self.num_layers}, "
                "is needed (draft layers have none)"
            )
        for layer, ratio in enumerate(self.compress_ratios):
            if ratio not in (0, 1, 2):
                raise ConfigError(f"compress_ratios[{layer}] is {ratio}; 0, 1 and 2 are accepted")
            if ratio and self.tokens_per_block % ratio:
                raise ConfigError(
                    f"tokens_per_block is {self.tokens_per_block}; compress_ratios[{layer}] = {ratio} must divide it"
                )
        if self.extra_ring and not self.window_size:
            raise ConfigError(f"extra_ring is {self.extra_ring}; a model without a window (window_size 0) has no ring")

    def _check_sources(self) -> None:
        for name in ("kv_source_layers", "index_key_source_layers"):
            sources = getattr(self, name)
            if list(sources) != sorted(set(sources)):
                raise ConfigError(f"{name} is {sources}; increasing layers are needed")
            for source in sources:
                if not 0 <= source < self.num_layers:
                    raise ConfigError(f"{name} has layer {source}; 0..{self.num_layers - 1} are accepted")
                if self.compress_ratios[source] == 0:
                    raise ConfigError(f"{name} has layer {source}, whose ratio is 0; a source needs ratio 1 or 2")
        missing = set(self.kv_source_layers) - set(self.index_key_source_layers)
        if missing:
            raise ConfigError(f"index_key_source_layers lacks layer {min(missing)}; every KV source owns index keys")
        for layer, ratio in enumerate(self.compress_ratios):
            source = self.kv_source(layer)
            if ratio and source is None:
                raise ConfigError(f"kv_source_layers is {self.kv_source_layers}; layer {layer} has no source before it")
            if source is not None and self.compress_ratios[source] != ratio:
                raise ConfigError(
                    f"compress_ratios[{layer}] is {ratio}; its KV source, layer {source}, has "
                    f"{self.compress_ratios[source]}, and they must be equal"
                )
