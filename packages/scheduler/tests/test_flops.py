"""The FLOPs of rows: the recorded cases, a count pair by pair, and both implementations against each other."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.scheduler import _core, flops
from thalweg.scheduler.flops import FlopsLayer, FlopsModel

GOLDEN = Path(__file__).parent / "golden"
ESTIMATORS = {"reference": flops.FlopsEstimator, "native": _core.FlopsEstimator}


@pytest.fixture(params=ESTIMATORS)
def estimator_type(request: pytest.FixtureRequest) -> Any:
    return ESTIMATORS[request.param]


def model_of_vector(document: dict[str, Any]) -> FlopsModel:
    facts, shared = document["metadata"], document["shared_layer_metadata"]
    layers = tuple(
        FlopsLayer(
            compress_ratio=facts["kv_compress_ratio_list"][i] if facts["has_packed_kv_list"][i] else 0,
            has_window=facts["use_swa_list"][i],
            topk=facts["topk_tokens"][i],
            index_heads=facts["index_attn_num_heads"][i],
            index_head_dim=facts["index_attn_head_dim"][i],
            is_kv_source=shared["is_kv_source_list"][i],
            is_index_source=shared["is_index_source_list"][i] and facts["indexer_use_kproj_list"][i],
            is_index_key_source=shared["is_index_k_source_list"][i],
            candidate_blocks=shared["index_candidate_blocks"][i],
            candidate_block_size=shared["index_candidate_block_size"][i],
        )
        for i in range(facts["n_layer"])
    )
    return FlopsModel(
        hidden_size=facts["n_embed"],
        vocab_size=facts["vocab_size"],
        num_heads=facts["n_head"],
        head_dim=facts["q_head_dim"],
        query_rank=facts["q_lora_rank"],
        output_rank=facts["o_head_dim"],
        output_groups=facts["n_wv_group"],
        window_size=facts["window_size"],
        expert_size=facts["moe_intermediate_size"],
        experts_per_token=facts["moe_top_k"],
        shared_experts=facts["n_shared_experts"],
        routed_experts=facts["n_routed_experts"],
        layers=layers,
        first_consumer_layer=facts["n_prefill_layer"],
        hyper_connections=facts["hc_mult"] if facts["hc_enabled"] else 0,
        shifted_hyper_connections=facts["hc_shifted"],
        engram_layers=tuple(facts["engram_cfg"]["engram_layer_ids"]),
        engram_width=sum(facts["engram_cfg"]["n_embed_per_ngram"]),
        fp8_attention=facts["fp8_attn"],
        fp8_experts=facts["fp8_mlp"],
        fp8_engram=facts["engram_fp8_proj"],
        fp4_indexer=facts["indexer_use_fp4"],
    )


@pytest.mark.parametrize(("name", "num_cases"), [("flops_toy", 27), ("flops_v41_like", 21)])
def test_recorded_rows_are_estimated_exactly(estimator_type: Any, name: str, num_cases: int) -> None:
    document = json.loads((GOLDEN / f"{name}.json").read_text())
    model = model_of_vector(document)
    assert len(document["cases"]) == num_cases
    for case in document["cases"]:
        estimator = estimator_type(replace(model, replay=case["yoco_mode"], replay_keep_tokens=case["keep_tokens"]))
        row = (case["q"], case["k"], case["is_prompt"], case["full_len"], case["swa_valid_start"])
        assert estimator.estimate(*row) == (case["attention"], case["total"]), case


SIZES = st.integers(1, 12)


@st.composite
def layers(draw: st.DrawFn) -> FlopsLayer:
    ratio = draw(st.integers(0, 5))
    return FlopsLayer(
        compress_ratio=ratio,
        has_window=draw(st.booleans()),
        topk=draw(st.integers(0, 6)),
        index_heads=draw(st.integers(0, 3)),
        index_head_dim=draw(st.integers(0, 5)),
        is_kv_source=ratio > 0 and draw(st.booleans()),
        is_index_source=ratio > 0 and draw(st.booleans()),
        is_index_key_source=draw(st.booleans()),
        candidate_blocks=draw(st.integers(0, 3)),
        candidate_block_size=draw(st.integers(1, 5)),
    )


@st.composite
def models(draw: st.DrawFn) -> FlopsModel:
    chosen = tuple(draw(st.lists(layers(), min_size=1, max_size=4)))
    sizes = ("hidden_size", "vocab_size", "num_heads", "head_dim", "query_rank", "output_rank", "output_groups")
    sizes += ("window_size", "expert_size", "experts_per_token", "routed_experts", "engram_width")
    flags = ("shifted_hyper_connections", "fp8_attention", "fp8_experts", "fp8_engram", "fp4_indexer")
    return FlopsModel(
        **{name: draw(SIZES) for name in sizes},
        **{name: draw(st.booleans()) for name in flags},
        layers=chosen,
        shared_experts=draw(st.integers(0, 2)),
        first_consumer_layer=draw(st.integers(0, len(chosen))),
        hyper_connections=draw(st.integers(0, 4)),
        engram_layers=tuple(sorted(draw(st.sets(st.integers(0, len(chosen) - 1))))),
        replay=draw(st.sampled_from(["off", "mask", "compact"])),
        replay_keep_tokens=draw(st.integers(0, 30)),
    )


LENGTHS = st.one_of(st.integers(-2, 60), st.integers(2**31 - 60, 2**31 + 2))


@given(models(), LENGTHS, LENGTHS, st.booleans(), LENGTHS, st.integers(-1, 40))
def test_both_implementations_agree_on_every_row_good_or_bad(
    model: FlopsModel, query: int, context: int, is_prefill: bool, full: int, valid_start: int
) -> None:
    row = (query, context, is_prefill, full, valid_start)
    assert outcome(flops.FlopsEstimator(model), row) == outcome(_core.FlopsEstimator(model), row)


@given(models(), st.data())
def test_both_implementations_agree_on_good_rows(model: FlopsModel, data: st.DataObject) -> None:
    context = data.draw(st.one_of(st.integers(1, 80), st.integers(1, 2**31 - 1)))
    query = data.draw(st.one_of(st.integers(1, min(context, 6)), st.integers(1, context)))
    full = data.draw(st.one_of(st.just(-1), st.integers(context, min(context + 50, 2**31 - 1))))
    valid_start = data.draw(st.integers(0, context - query))
    row = (query, context, data.draw(st.booleans()), full, valid_start)
    attention, total = flops.FlopsEstimator(model).estimate(*row)
    assert 0 < attention < total
    assert _core.FlopsEstimator(model).estimate(*row) == (attention, total)


def outcome(estimator: Any, row: tuple[Any, ...]) -> object:
    try:
        return tuple(estimator.estimate(*row))
    except ValueError as error:
        return str(error)


@given(models(), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2**31 - 7)), max_size=20))
def test_decode_rows_together_cost_the_sum_of_their_estimates(model: FlopsModel, rows: list[tuple[int, int]]) -> None:
    queries, contexts = [query for query, _ in rows], [query + before for query, before in rows]
    each = [flops.FlopsEstimator(model).estimate(*row, False) for row in zip(queries, contexts, strict=True)]
    expected = (sum(row.attention for row in each), sum(row.total for row in each))
    assert _core.FlopsEstimator(model).estimate_decode(queries, contexts) == expected


def small_model(**changes: Any) -> FlopsModel:
    """Every width is 1 and there is one layer with a window, unless told otherwise."""
    sizes = ("hidden_size", "vocab_size", "num_heads", "head_dim", "query_rank", "output_rank", "output_groups")
    sizes += ("window_size", "expert_size", "experts_per_token", "routed_experts")
    defaults = {**dict.fromkeys(sizes, 1), "shared_experts": 0, "layers": (FlopsLayer(),), "first_consumer_layer": 1}
    return FlopsModel(**(defaults | changes))


@pytest.mark.parametrize(
    ("layer", "cost_per_pair", "entries"),
    [
        (FlopsLayer(), 8, lambda position: min(4, position + 1)),
        (FlopsLayer(has_window=False, compress_ratio=3), 8, lambda position: (position + 1) // 3),
        (FlopsLayer(has_window=False, compress_ratio=3, topk=2), 8, lambda position: min(2, (position + 1) // 3)),
    ],
)
def test_attention_grows_by_the_entries_that_a_query_sees(
    estimator_type: Any, layer: FlopsLayer, cost_per_pair: int, entries: Any
) -> None:
    estimator = estimator_type(small_model(layers=(layer,), window_size=4))
    costs = [estimator.estimate(1, context, False)[0] for context in range(1, 30)]
    seen = [entries(position) for position in range(29)]
    assert [after - before for before, after in pairwise(costs)] == [
        cost_per_pair * (after - before) for before, after in pairwise(seen)
    ]


def test_index_scores_stop_growing_at_the_candidate_blocks(estimator_type: Any) -> None:
    indexer = {"has_window": False, "compress_ratio": 2, "topk": 1, "index_heads": 1, "index_head_dim": 1}
    free = FlopsLayer(**indexer, is_index_source=True)
    limited = replace(free, candidate_blocks=3, candidate_block_size=4)
    at = {name: estimator_type(small_model(layers=(layer,))) for name, layer in (("free", free), ("limited", limited))}
    assert at["limited"].estimate(1, 24, False) == at["limited"].estimate(1, 1000, False)
    assert at["free"].estimate(1, 24, False) == at["limited"].estimate(1, 24, False)
    assert at["free"].estimate(1, 26, False)[0] == at["limited"].estimate(1, 26, False)[0] + 1


def test_replay_spares_the_consumer_layers_the_rows_before_the_kept_ones(estimator_type: Any) -> None:
    layers = (FlopsLayer(), FlopsLayer())
    whole, masked, compact = (
        estimator_type(small_model(layers=layers, replay=mode, replay_keep_tokens=4, window_size=8))
        for mode in ("off", "mask", "compact")
    )
    early = (10, 10, True, 100)  # nothing of it is kept: one row remains, so that the chunk has a last one
    assert compact.estimate(*early) < masked.estimate(*early) < whole.estimate(*early)
    assert compact.estimate(1, 50, True, 100) == masked.estimate(1, 50, True, 100)
    decode = (6, 100, False)
    assert compact.estimate(*decode) == masked.estimate(*decode) == whole.estimate(*decode)


def test_numpy_integers_do_not_overflow(estimator_type: Any) -> None:
    estimator = estimator_type(small_model(layers=(FlopsLayer(compress_ratio=1),), hidden_size=5000))
    row = (np.int32(100_000), np.int32(100_000), True, np.int32(100_000), np.int32(0))
    assert estimator.estimate(*row) == estimator.estimate(100_000, 100_000, True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, 5, True), "query_length is 0; it must be from 1"),
        ((-3, 5, False), "query_length is -3"),
        ((6, 5, True), "context_length is 5; it must be at least query_length, 6"),
        ((1, 2**31, True), "context_length is 2147483648"),
        ((2, 5, True, 4), r"full_length is 4; for a prefill row it must be -1, or from 5 \(context_length\)"),
        ((2, 5, True, -2), "full_length is -2"),
        ((2, 5, True, 2**31), "full_length is 2147483648"),
        ((2, 5, True, 5, 4), "window_valid_start is 4; it must be from 0 to 3"),
        ((2, 5, False, -1, -1), "window_valid_start is -1"),
    ],
)
def test_lengths_that_no_row_has_are_refused(estimator_type: Any, row: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimator_type(small_model()).estimate(*row)


def test_lengths_that_are_no_integers_are_refused(estimator_type: Any) -> None:
    with pytest.raises(TypeError):
        estimator_type(small_model()).estimate(1.5, 5, False)


def test_a_batch_of_decode_rows_is_checked_too() -> None:
    estimator = _core.FlopsEstimator(small_model())
    with pytest.raises(ValueError, match="query_lengths has 2 items and context_lengths has 1"):
        estimator.estimate_decode([1, 1], [5])
    with pytest.raises(ValueError, match="context_length is 2"):
        estimator.estimate_decode([1, 3], [5, 2])
    assert estimator.estimate_decode([], []) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0; it must be an integer from 1 to 1048576"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"head_dim": 1.0}, "head_dim is 1.0"),
        ({"expert_size": (1 << 20) + 1}, "expert_size is 1048577"),
        ({"shared_experts": -1}, "shared_experts is -1; it must be an integer from 0"),
        ({"layers": ()}, "layers has 0 items; it must have 1 to 1024"),
        ({"layers": [FlopsLayer()]}, "it must be a tuple of FlopsLayer"),
        ({"layers": (1,)}, "it must be a tuple of FlopsLayer"),
        ({"first_consumer_layer": 2}, "first_consumer_layer is 2; it must be at most the number of layers, 1"),
        ({"engram_layers": (1,), "engram_width": 1}, r"engram_layers is \(1,\)"),
        ({"engram_layers": (0, 0), "engram_width": 1}, r"engram_layers is \(0, 0\)"),
        ({"engram_layers": (0,)}, "engram_width is 0; with engram_layers it must be at least 1"),
        ({"fp8_experts": 1}, "fp8_experts is 1; it must be True or False"),
        ({"replay": "on"}, "replay is 'on'; it must be 'off', 'mask' or 'compact'"),
    ],
)
def test_a_model_with_a_bad_size_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_model(**changes)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"compress_ratio": -1}, "compress_ratio is -1"),
        ({"has_window": 0}, "has_window is 0; it must be True or False"),
        ({"is_kv_source": True}, "compress_ratio is 0; a KV source and an index source need at least 1"),
        ({"topk": 1, "is_index_source": True}, "compress_ratio is 0"),
        ({"candidate_blocks": 1}, "candidate_block_size is 0; it must be an integer from 1"),
    ],
)
def test_a_layer_with_a_bad_fact_is_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FlopsLayer(**facts)


def test_only_a_checked_model_is_accepted() -> None:
    with pytest.raises(TypeError, match="it must be a FlopsModel"):
        _core.FlopsEstimator({"hidden_size": 1})  # type: ignore[arg-type]
