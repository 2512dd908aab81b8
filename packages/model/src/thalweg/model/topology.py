"""Which layer reads which: sources of compressed streams, index keys and selections, and the rules that they obey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from thalweg.interfaces import ConfigError
from thalweg.interfaces.text_table import aligned


@dataclass(frozen=True, slots=True)
class LayerTopology:
    """What one layer produces and reads. A source equal to `layer` means that the layer makes it itself."""

    layer: int
    ratio: int
    """0: window only; 1 or 2: tokens per entry of the compressed stream that the layer reads."""
    kv_source: int | None
    """Layer whose compressed stream is read."""
    index_key_source: int | None
    """Layer whose index keys are scored."""
    index_source: int | None
    """Layer whose selection is used."""
    produces_candidates: bool
    """Publishes candidate blocks; its own selection is unrestricted."""
    candidate_source: int | None
    """Layer whose candidate blocks restrict this layer's own indexer; None = unrestricted or no indexer."""
    engram_index: int | None
    """Position in engram_layer_ids."""
    is_producer: bool
    """Below the first ratio-1 layer."""

    @classmethod
    def window_only(cls, layer: int) -> LayerTopology:
        """A layer that reads nothing but its own window, and shares nothing: every draft layer."""
        return cls(
            layer=layer,
            ratio=0,
            kv_source=None,
            index_key_source=None,
            index_source=None,
            produces_candidates=False,
            candidate_source=None,
            engram_index=None,
            is_producer=False,
        )

    @property
    def is_kv_source(self) -> bool:
        """Has a compressor and owns a compressed stream."""
        return self.kv_source == self.layer

    @property
    def is_index_key_source(self) -> bool:
        """Owns index keys."""
        return self.index_key_source == self.layer

    @property
    def is_index_source(self) -> bool:
        """Runs an indexer."""
        return self.index_source == self.layer

    @property
    def has_gate(self) -> bool:
        """Its compressor pools several tokens, with learned scores."""
        return self.is_kv_source and self.ratio > 1


@dataclass(frozen=True, slots=True)
class Topology:
    """The kinds of all backbone layers."""

    layers: tuple[LayerTopology, ...]
    num_producer_layers: int
    """The first layer with ratio 1 (`n_prefill`); all layers when there is none."""
    kv_sources: tuple[int, ...]
    index_key_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    candidate_source: int | None
    engram_layers: tuple[int, ...]

    def __getitem__(self, layer: int) -> LayerTopology:
        return self.layers[layer]

    def __len__(self) -> int:
        return len(self.layers)

    def render(self) -> str:
        """The table of layer kinds as text, one line per layer."""
        header = ("layer", "ratio", "kv", "index keys", "selection", "candidates", "engram", "half")
        rows = [header]
        for item in self.layers:
            candidates = "produces" if item.produces_candidates else "-"
            if item.candidate_source is not None:
                candidates = f"from {item.candidate_source}"
            rows.append(
                (
                    str(item.layer),
                    str(item.ratio),
                    _shown(item.kv_source, item.layer),
                    _shown(item.index_key_source, item.layer),
                    _shown(item.index_source, item.layer),
                    candidates,
                    "yes" if item.engram_index is not None else "-",
                    "producer" if item.is_producer else "consumer",
                )
            )
        return "\n".join(aligned(rows))


def derive_topology(
    *,
    num_layers: int,
    ratios: Sequence[int],
    kv_sources: Sequence[int],
    index_sources: Sequence[int],
    index_key_sources: Sequence[int] | None = None,
    candidate_source: int | None = None,
    engram_layers: Sequence[int] = (),
) -> Topology:
    """Derive every layer's sources and check that they fit together.

    ratios: compress ratio per layer, draft layers (which share nothing) at the end. Raises ConfigError naming the key.
    """
    index_keys = tuple(kv_sources if index_key_sources is None else index_key_sources)
    backbone = tuple(ratios[:num_layers])
    _check_range("kv_source_layer_ids", kv_sources, num_layers)
    _check_range("index_source_layer_ids", index_sources, num_layers)
    _check_range("index_k_source_layer_ids", index_keys, num_layers)
    _check_range("engram_layer_ids", engram_layers, num_layers)
    kv = source_map(kv_sources, num_layers)
    keys = source_map(index_keys, num_layers)
    selections = source_map(index_sources, num_layers)
    first_consumer = backbone.index(1) if 1 in backbone else num_layers

    if first_consumer < num_layers and first_consumer not in kv_sources:
        _reject(
            "kv_source_layer_ids",
            list(kv_sources),
            f"it must contain {first_consumer}, the first layer with ratio 1, whose stream the later layers read",
        )
    _check_sources("kv_source_layer_ids", "KV", kv, backbone)
    _check_sources("index_source_layer_ids", "index", selections, backbone)
    _check_sources("index_k_source_layer_ids", "index key", keys, backbone)
    _check_nesting("index_source_layer_ids", selections, "index_k_source_layer_ids", keys)
    _check_nesting("index_k_source_layer_ids", keys, "kv_source_layer_ids", kv)
    for source in kv_sources:
        if source not in index_sources:
            _reject("index_source_layer_ids", list(index_sources), f"it must contain the KV source layer {source}")
        if source not in index_keys:
            _reject("index_k_source_layer_ids", list(index_keys), f"it must contain the KV source layer {source}")
    if candidate_source is not None:
        _check_candidates(candidate_source, index_sources, backbone)

    layers = tuple(
        LayerTopology(
            layer=layer,
            ratio=backbone[layer],
            kv_source=kv[layer],
            index_key_source=keys[layer],
            index_source=selections[layer],
            produces_candidates=layer == candidate_source,
            candidate_source=candidate_source
            if candidate_source is not None and layer > candidate_source and selections[layer] == layer
            else None,
            engram_index=list(engram_layers).index(layer) if layer in engram_layers else None,
            is_producer=layer < first_consumer,
        )
        for layer in range(num_layers)
    )
    return Topology(
        layers=layers,
        num_producer_layers=first_consumer,
        kv_sources=tuple(kv_sources),
        index_key_sources=index_keys,
        index_sources=tuple(index_sources),
        candidate_source=candidate_source,
        engram_layers=tuple(engram_layers),
    )


def source_map(sources: Sequence[int], num_layers: int) -> tuple[int | None, ...]:
    """For each layer the nearest source at or before it, None before the first."""
    return tuple(max((s for s in sources if s <= layer), default=None) for layer in range(num_layers))


def _shown(source: int | None, layer: int) -> str:
    if source is None:
        return "-"
    return "self" if source == layer else str(source)


def _reject(name: str, value: object, expectation: str) -> NoReturn:
    raise ConfigError(f"config.json: text_config.{name} is {value!r}; {expectation}")


def _check_range(name: str, layers: Sequence[int], num_layers: int) -> None:
    if any(layer >= num_layers for layer in layers):
        _reject(name, list(layers), f"each must be below num_hidden_layers = {num_layers}")


def _check_sources(name: str, what: str, sources: Sequence[int | None], ratios: Sequence[int]) -> None:
    for layer, source in enumerate(sources):
        if source is None:
            if ratios[layer] > 0:
                _reject(
                    name,
                    sorted({s for s in sources if s is not None}),
                    f"layer {layer} has compress ratio {ratios[layer]} and needs a source at or before it",
                )
        elif ratios[source] == 0:
            _reject("compress_ratios", list(ratios), f"layer {source} is in {name} and needs ratio 1 or 2")
        elif ratios[source] != ratios[layer]:
            _reject(
                "compress_ratios",
                list(ratios),
                f"layer {layer} has ratio {ratios[layer]} but its {what} source, layer {source}, has {ratios[source]}",
            )


def _check_nesting(inner_name: str, inner: Sequence[int | None], outer_name: str, outer: Sequence[int | None]) -> None:
    for layer, source in enumerate(inner):
        if source is not None and outer[layer] != outer[source]:
            _reject(
                inner_name,
                sorted({s for s in inner if s is not None}),
                f"layers {source} and {layer} share this source but lie in the segments of layers "
                f"{outer[source]} and {outer[layer]} of {outer_name}; segments must nest",
            )


def _check_candidates(source: int, index_sources: Sequence[int], ratios: Sequence[int]) -> None:
    if source not in index_sources:
        _reject("candidate_source_layer_id", source, f"it must be one of the index sources {list(index_sources)}")
    for layer in index_sources:
        if layer > source and ratios[layer] != ratios[source]:
            _reject(
                "candidate_source_layer_id",
                source,
                f"it has ratio {ratios[source]}, but index source {layer} after it has {ratios[layer]}",
            )
