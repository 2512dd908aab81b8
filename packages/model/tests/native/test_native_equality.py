"""On the CPU's ops the native model has the bits of the reference with float32 sums, however steps are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_testing.native_pairs import assert_steps_are_equal, stacked

from thalweg.model import Trace
from thalweg.model.native import paged

VARIANTS: dict[str, dict[str, Any]] = {
    "every kind of layer": {},
    "MXFP8 streams, tied head, no Engram": {
        "use_fp4_sparse_kv": False,
        "tie_word_embeddings": True,
        "engram_layer_ids": (),
    },
    "window only but for one stream, Engram first, no YaRN": {
        "num_hidden_layers": 4,
        "compress_ratios": (0, 0, 1, 1),
        "kv_source_layer_ids": (2,),
        "index_source_layer_ids": (2, 3),
        "candidate_source_layer_id": None,
        "engram_layer_ids": (0,),
        "rope_scaling": None,
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_over_the_cache_have_the_bits_of_the_reference(
    name: str, load_pair: Callable[..., Any], native_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    assert_steps_are_equal(load_pair(**VARIANTS[name]), native_tokens, make_cache)


def test_decode_continues_a_prefill_with_the_bits_of_one_chunk(
    load_pair: Callable[..., Any], native_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    cache = make_cache(load_pair().native)
    running, whole = cache.add(native_tokens), cache.add(native_tokens)
    cache.prefill([(whole, len(native_tokens))])
    cache.prefill([(running, 78)])
    cache.decode([(running, 2)])
    cache.decode([(running, 1)])
    cache.decode([(running, 2)], placeholders=1)
    assert torch.equal(stacked(running), stacked(whole))


def test_scores_in_parts_select_what_one_matrix_selects(
    load_pair: Callable[..., Any],
    native_tokens: torch.Tensor,
    make_cache: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces = []
    for num_bytes in (paged.SCORE_BYTES, 10 * 2 * 128):  # ten rows of 128 columns
        monkeypatch.setattr(paged, "SCORE_BYTES", num_bytes)
        cache = make_cache(load_pair().native)
        running = cache.add(native_tokens)
        traces.append(Trace())
        cache.prefill([(running, len(native_tokens))], traces[-1])
    whole, parts = traces
    assert whole.values.keys() == parts.values.keys()
    for key, value in whole.values.items():
        assert torch.equal(parts[key], value), key


def test_rows_of_images_take_their_embeddings_in_order(
    load_pair: Callable[..., Any], native_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    pair, count = load_pair(), 30
    mask = torch.zeros(count, dtype=torch.bool)
    mask[4:9] = mask[20] = True
    embeddings = torch.randn(6, pair.native.config.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = []
    for model in (pair.native, pair.reference):
        cache = make_cache(model)
        running = cache.add(native_tokens[:count])
        cache.prefill([(running, count)], image_mask=mask, image_embeddings=embeddings)
        found.append(stacked(running))
    assert torch.equal(*found)
