"""Which layer reads which, and the configs whose layers do not fit together."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.interfaces import ConfigError
from thalweg.model import ModelConfig
from thalweg.model.topology import derive_topology, source_map


def derive(**changes: Any) -> Any:
    facts: dict[str, Any] = {
        "num_layers": 8,
        "ratios": [0, 0, 2, 2, 1, 1, 1, 1],
        "kv_sources": [2, 4],
        "index_sources": [2, 4, 6],
        "candidate_source": 4,
        "engram_layers": [1, 3],
    }
    return derive_topology(**(facts | changes))


def test_the_released_ids_give_the_published_layer_kinds(released: dict[str, Any]) -> None:
    topology = ModelConfig.from_dict(released).topology
    assert len(topology) == 40
    assert topology.num_producer_layers == 20
    for layer in range(40):
        kind = topology[layer]
        assert kind.layer == layer
        assert kind.is_producer == (layer < 20)
        assert kind.engram_index == {1: 0, 14: 1}.get(layer)
        if layer < 2:
            assert (kind.ratio, kind.kv_source, kind.index_source, kind.index_key_source) == (0, None, None, None)
        elif layer < 20:
            source = {0: 2, 1: 8, 2: 14}[(layer - 2) // 6]
            assert (kind.ratio, kind.kv_source, kind.index_source, kind.index_key_source) == (2, *[source] * 3)
            assert kind.is_kv_source == kind.is_index_source == kind.has_gate == (layer in (2, 8, 14))
        else:
            selection = 20 + (layer - 20) // 4 * 4
            assert (kind.ratio, kind.kv_source, kind.index_source, kind.index_key_source) == (1, 20, selection, 20)
            assert kind.is_kv_source == (layer == 20)
            assert kind.is_index_source == (layer in (20, 24, 28, 32, 36))
            assert not kind.has_gate
        assert kind.produces_candidates == (layer == 20)
        assert kind.candidate_source == (20 if layer in (24, 28, 32, 36) else None)


def test_the_table_names_sources_and_roles() -> None:
    lines = derive().render().splitlines()
    assert lines[1].split() == ["0", "0", "-", "-", "-", "-", "-", "producer"]
    assert lines[5].split() == ["4", "1", "self", "self", "self", "produces", "-", "consumer"]
    assert lines[7].split() == ["6", "1", "4", "4", "self", "from", "4", "-", "consumer"]


def test_a_layer_uses_the_nearest_source_before_it() -> None:
    assert source_map([2, 5], 7) == (None, None, 2, 2, 2, 5, 5)
    assert source_map([], 2) == (None, None)


def test_a_model_without_ratio_one_has_only_producers() -> None:
    topology = derive(ratios=[0, 0] + [2] * 6, kv_sources=[2], index_sources=[2], candidate_source=None)
    assert topology.num_producer_layers == 8
    assert all(kind.is_producer for kind in topology.layers)


def test_a_model_may_have_windows_only() -> None:
    topology = derive(ratios=[0] * 8, kv_sources=[], index_sources=[], candidate_source=None)
    assert all(kind.kv_source is None for kind in topology.layers)


def test_index_keys_may_come_from_fewer_layers_than_selections() -> None:
    topology = derive(index_key_sources=[2, 4])
    assert [kind.index_key_source for kind in topology.layers] == [None, None, 2, 2, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_sources": [3, 4], "index_sources": [3, 4]}, r"kv_source_layer_ids .* layer 2 has compress ratio 2"),
        ({"index_sources": [4, 6]}, r"index_source_layer_ids .* layer 2 has compress ratio 2"),
        ({"ratios": [0, 0, 2, 0, 1, 1, 1, 1]}, r"compress_ratios .* layer 3 has ratio 0 but its KV source, layer 2"),
        ({"ratios": [0, 0, 2, 1, 1, 1, 1, 1]}, r"kv_source_layer_ids is \[2, 4\]; it must contain 3, the first layer"),
        ({"ratios": [0, 0, 0, 0, 1, 1, 1, 1]}, r"compress_ratios .* layer 2 is in kv_source_layer_ids"),
        ({"kv_sources": [2, 8]}, r"kv_source_layer_ids is \[2, 8\]; each must be below num_hidden_layers = 8"),
        ({"engram_layers": [8]}, r"engram_layer_ids is \[8\]"),
        ({"index_key_sources": [2, 4, 5]}, r"index_source_layer_ids .* segments must nest"),
        ({"index_key_sources": [2]}, r"index_k_source_layer_ids .* needs ratio|ratio 1 but its index key source"),
        ({"kv_sources": [2, 4, 5], "index_key_sources": [2, 4, 6]}, r"segments must nest"),
        ({"kv_sources": [2, 4, 5]}, r"segments must nest"),
        ({"candidate_source": 5}, r"candidate_source_layer_id is 5; it must be one of the index sources \[2, 4, 6\]"),
        ({"candidate_source": 2}, r"candidate_source_layer_id is 2; it has ratio 2, but index source 4"),
    ],
)
def test_layers_that_do_not_fit_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        derive(**changes)
