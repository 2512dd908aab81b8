"""Arguments that do not go together are refused by name: by kernels of Hopper before a launch, and by references."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import Mxfp8Rows, RecordFormat, bind
from thalweg.kernels import sm90 as package
from thalweg.kernels.catalog import DEVICE_MODULES

BACKENDS = {"cpu": bind("cpu"), "sm90": bind("sm90")}
NAN, HUGE = float("nan"), 1 << 70


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU pass for those of a GPU."""
    for module in (*DEVICE_MODULES, *vars(package).values()):
        if isinstance(module, ModuleType) and hasattr(module, "check_device"):
            monkeypatch.setattr(module, "check_device", lambda **tensors: None)


def ints(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int32)


def codes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def flags(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def floats(*shape: int) -> Tensor:
    return torch.zeros(shape)


reference = BACKENDS["cpu"]
SCALAR = torch.tensor(1, dtype=torch.int32)
X = Mxfp8Rows(codes(2, 32), codes(2, 1))
WEIGHT = reference.pack_fp8_weight(codes(32, 32), codes(1, 1))
EXPERTS = reference.pack_expert_weights(codes(1, 256, 64), codes(1, 256, 4))
PLAN = reference.plan_experts(torch.zeros(2, 1, dtype=torch.int64), floats(2, 1), 1)
ROUTED = Mxfp8Rows(codes(2, 128), codes(2, 4))
VERIFIED = reference.match_drafts(ints(2), ints(2), torch.tensor([2]), flags(2), 1)
VIEW, POOL = codes(2, 4, 1, 33), floats(2, 1, 5)
VERIFY = {
    "best_ids": ints(2), "token_ids": ints(2), "query_lengths": torch.tensor([2]), "is_broken": flags(2),
    "logprobs": floats(2, 5), "seeds": torch.arange(2), "positions": ints(2), "draft_pool": POOL,
    "read_slots": ints(1),
}  # fmt: skip
DECODE = {
    "query_lengths": ints(2), "context_lengths": ints(2), "state_slots": ints(2), "block_ids": ints(3),
    "block_offsets": torch.tensor([0, 1, 3]), "is_placeholder": flags(2), "tokens_per_block": 8, "window_size": 4,
    "ring_length": 9, "ratios": (2,), "table_width": 4, "num_queries": 2, "max_blocks": 2,
}  # fmt: skip
NGRAMS = {
    "query_lengths": ints(1), "previous_rows": ints(1) - 1, "ngram_ids": ints(1, 2), "windows": ints(1, 3),
    "previous_token_ids": ints(1), "previous_draft_ids": ints(1, 1), "num_accepted": ints(1), "compressed": ints(9),
    "pad_id": 0, "num_queries": 1,
}  # fmt: skip
SAMPLE = {
    "logits": floats(2, 5), "temperature": floats(2), "top_p": floats(2), "top_k": ints(2), "min_p": floats(2),
    "seeds": torch.arange(2), "positions": ints(2),
}  # fmt: skip
CHUNKS = {
    "score": floats(4, 4), "latent": floats(4, 4), "ring": floats(1, 3, 2, 4), "state_slots": ints(1) - 1,
    "query_offsets": torch.tensor([0, 4]), "first_positions": ints(1) - 1, "compressed_offsets": torch.tensor([0, 2]),
    "ratio": 2, "num_entries": 2,
}  # fmt: skip
GROUP = {name: CHUNKS[name] for name in ("score", "latent", "ring", "ratio")}
DRAFTS = {"draft_length": 2, "window_size": 4, "ring_length": 8}
JUDGE = (floats(2, 5), ints(2), flags(2), floats(0, 5), ints(2), torch.arange(2), ints(2))
INDEX = (codes(1, 1, 16), codes(1, 1, 1), torch.zeros(1, 1, dtype=torch.bfloat16))
PAGED = (torch.zeros(1, 1, 64, dtype=torch.bfloat16), codes(0, 4, 1, 66), ints(1, 2), None, None)


def changed(value: Any, **fields: Any) -> Any:
    return dataclasses.replace(value, **fields)


CALLS: dict[str, Callable[[Any], object]] = {
    "scales of weight has shape .2, 1.": lambda k: k.fp8_linear(X, changed(WEIGHT, scales=codes(2, 1))),
    "scales of weight lie on meta": lambda k: k.fp8_linear(X, changed(WEIGHT, scales=codes(1, 1).to("meta"))),
    "tiles of weight has dtype torch.int8": lambda k: k.fp8_linear(X, changed(WEIGHT, tiles=WEIGHT.tiles.char())),
    "tiles of weight has shape .1, 1, 1023.": lambda k: k.fp8_linear(X, changed(WEIGHT, tiles=codes(1, 1, 1023))),
    r"tiles of weight has shape \[\]": lambda k: k.grouped_fp8_linear(X, changed(WEIGHT, tiles=SCALAR), 1),
    "groups is nan": lambda k: k.grouped_fp8_linear(X, WEIGHT, NAN),
    "tokens of plan has shape .1.": lambda k: k.expert_linear(
        ROUTED, EXPERTS, changed(PLAN, tokens=ints(1)), gather=True
    ),
    "tiles of plan has shape": lambda k: k.expert_linear(ROUTED, EXPERTS, changed(PLAN, tiles=ints(1, 3)), gather=True),
    "num_tiles of plan has shape .0.": lambda k: k.expert_linear(
        ROUTED, EXPERTS, changed(PLAN, num_tiles=ints(0)), gather=True
    ),
    "tiles of weights has dtype torch.int8": lambda k: k.expert_linear(
        ROUTED, changed(EXPERTS, tiles=EXPERTS.tiles.char()), PLAN, gather=True
    ),
    r"outputs has shape \[\]": lambda k: k.combine_experts(SCALAR, floats(2, 8), PLAN),
    r"positions of plan has shape \[\]": lambda k: k.combine_experts(
        floats(2, 8), floats(2, 8), changed(PLAN, positions=SCALAR)
    ),
    "image_bias has shape .3.": lambda k: k.topk_gate(floats(2, 4), None, 1, 1.0, floats(3)),
    r"query_lengths has shape \[\]": lambda k: k.decode_metadata(**DECODE | {"query_lengths": SCALAR}),
    "num_queries is -1": lambda k: k.decode_metadata(**DECODE | {"num_queries": -1}),
    "table_width is 0; an integer from 1": lambda k: k.decode_metadata(**DECODE | {"table_width": 0, "max_blocks": 0}),
    "ring_length is 0": lambda k: k.decode_metadata(**DECODE | {"ring_length": 0}),
    r"query_lengths is \[2, 2\]; numbers that add up to 2": lambda k: k.accepted_prefix(
        flags(2), ints(2), torch.tensor([2, 2]), 1
    ),
    "draft_length is -1": lambda k: k.accepted_prefix(flags(2), ints(2), torch.tensor([2]), -1),
    r"query_lengths is \[3\]; numbers": lambda k: k.match_drafts(ints(2), ints(2), torch.tensor([3]), flags(2), 1),
    r"token_ids has shape \[\]": lambda k: k.match_drafts(ints(2), SCALAR, torch.tensor([2]), flags(2), 1),
    r"query_lengths is \[1\]; numbers": lambda k: k.force_tokens(VERIFIED, ints(2), ints(2), torch.tensor([1])),
    "accept_probs has shape .1.": lambda k: k.force_tokens(
        changed(VERIFIED, accept_probs=floats(1)), ints(2), ints(2), torch.tensor([2])
    ),
    "draft_logprobs has no rows": lambda k: k.judge_drafts(*JUDGE),
    "draft_pool has no slots": lambda k: k.verify_drafts(**VERIFY | {"draft_pool": POOL[:0]}),
    "draft_pool has dtype torch.float64": lambda k: k.verify_drafts(**VERIFY | {"draft_pool": POOL.double()}),
    "drawn_rows has dtype torch.float32": lambda k: k.verify_drafts(**VERIFY, drawn_rows=floats(2)),
    "is_certain has shape .2.": lambda k: k.verify_drafts(**VERIFY, is_certain=flags(2)),
    "top_p has dtype torch.complex64": lambda k: k.sample_tokens(**SAMPLE | {"top_p": floats(2).to(torch.complex64)}),
    "min_p has dtype torch.complex64": lambda k: k.coupled_tokens(**SAMPLE | {"min_p": floats(2).to(torch.complex64)}),
    "top_p has dtype torch.int32": lambda k: k.filter_mask(floats(2, 5), ints(2), ints(2), floats(2)),
    "top_k has dtype torch.float32": lambda k: k.filtered_logprobs(floats(2, 5), *[floats(2)] * 4),
    "compressed is empty": lambda k: k.gather_ngram_ids(**NGRAMS | {"compressed": ints(0)}),
    "num_queries is nan": lambda k: k.gather_ngram_ids(**NGRAMS | {"num_queries": NAN}),
    r"previous_token_ids has shape \[\]": lambda k: k.gather_ngram_ids(**NGRAMS | {"previous_token_ids": SCALAR}),
    f"num_queries is {HUGE}": lambda k: k.gather_token_ids(ints(1), ints(1), ints(1, 2), ints(1), ints(1, 1), HUGE),
    "ring has no slots": lambda k: k.pool_decode(
        **GROUP | {"ring": floats(0, 3, 2, 4)}, state_slots=ints(4), context_lengths=ints(4)
    ),
    "state_slots has shape .4, 1.": lambda k: k.pool_decode(**GROUP, state_slots=ints(4, 1), context_lengths=ints(4)),
    "row_order has shape .3.": lambda k: k.pool_prefill(**CHUNKS, row_order=ints(3)),
    "query_offsets has shape .1, 2.": lambda k: k.pool_prefill(
        **CHUNKS | {"query_offsets": CHUNKS["query_offsets"][None]}
    ),
    "slots has shape .1, 2.": lambda k: k.store_mxfp8(VIEW, ints(1, 2), floats(2, 32)),
    "record_format is 'mxfp8'": lambda k: k.gather_records(VIEW, ints(2), "mxfp8"),
    r"view is torch.int32 \(\)": lambda k: k.load_records(SCALAR, ints(1, 4), 1, RecordFormat.MXFP8),
    "num_rows is -1": lambda k: k.load_parts(VIEW, ints(1, 4), -1, RecordFormat.MXFP8),
    r"window_indices has shape \[\]": lambda k: k.cat_kv_indices(SCALAR, ints(1, 2), 0),
    r"block_tables \(\) do not go together": lambda k: k.topk_to_slots(ints(1, 2), ints(1), SCALAR, 8),
    "window_size is -1": lambda k: k.expand_window_reads(ints(1, 2), -1, 8),
    "width is -1": lambda k: k.expand_window_pivots(ints(1, 4), -1),
    f"window_size is {-(2**40)}": lambda k: k.draft_metadata(ints(1), ints(1), **DRAFTS | {"window_size": -(2**40)}),
    "width is nan": lambda k: k.indexer_scores_rows(*INDEX, codes(1, 16), codes(1, 1), ints(1), ints(1), NAN),
    f"block_size is {HUGE}": lambda k: k.candidate_scores_rows(
        *INDEX, codes(1, 16), codes(1, 1), ints(1), ints(1), ints(1, 1), HUGE
    ),
    r"primes has shape \[\]": lambda k: k.engram_hash(ints(1, 2).long(), ints(2).long(), SCALAR.long(), ints(1).long()),
    "window_view has shape .0, 4, 1, 66.; at least one entry": lambda k: k.paged_sparse_attention(
        *PAGED, RecordFormat.MXFP8, floats(1), 1.0
    ),
    r"x has shape \[\]": lambda k: k.rms_norm(torch.tensor(1, dtype=torch.bfloat16), floats(1), 1e-6),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("message", CALLS)
def test_what_does_not_fit_is_named(backend: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CALLS[message](BACKENDS[backend])


def test_rows_of_several_axes_that_lie_apart_unevenly_are_named() -> None:
    x = torch.zeros(2, 3, 64, dtype=torch.bfloat16).transpose(0, 1)
    with pytest.raises(ConfigError, match=r"x has shape \[3, 2, 64\] with strides \[64, 192, 1\]; rows equally far"):
        BACKENDS["sm90"].rms_norm(x, floats(64), 1e-6)


def test_block_ids_that_end_too_early_are_named_where_they_can_be_read() -> None:
    with pytest.raises(ConfigError, match="block_ids has 2 entries; block_offsets reach 3"):
        reference.decode_metadata(**DECODE | {"block_ids": ints(2)})
