"""Drafting and verification read nothing back: they run on tensors without contents, and in a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.sampling_step import SAMPLING_MODULES
from torch import Tensor

from thalweg.kernels import bind, default_registry
from thalweg.kernels.catalog import GRAPH_SAFE_OPS
from thalweg.kernels.reference import async_inputs
from thalweg.kernels.sync_guard import SyncGuard, cuda_sync_mode

ops = bind("cpu", batch_invariant=True)
VOCABULARY, DRAFTS = 16, 2
STATE = ("pool", "logits")


def example(device: torch.device | str) -> dict[str, Tensor]:
    """A step of three sequences, with 3, 1 and 2 rows."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, VOCABULARY, generator=generator)
    pool = torch.log_softmax(torch.randn(4, DRAFTS, VOCABULARY, generator=generator), -1)
    tensors = {
        "logits": logits,
        "pool": pool,
        "rows": torch.tensor([0, 1, 2, 4, 5]),
        "lengths": torch.tensor([3, 1, 2]),
        "token_ids": torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int32),
        "is_broken": torch.tensor([False] * 4 + [True, False]),
        "seeds": torch.arange(6),
        "positions": torch.arange(6) * 11,
        "read_slots": torch.tensor([3, 1, 2]),
        "write_slots": torch.tensor([2, 0, 1]),
        "is_certain": torch.tensor([[True] * DRAFTS, [False] * DRAFTS, [False, True], [False] * DRAFTS]),
        "forced_ids": torch.tensor([-1, -1, -1, 9, -1, -1]),
        "trunk": torch.randn(3, 4, 8, generator=generator),
        "weight": torch.randn(8, generator=generator),
        "last": torch.tensor([9, -1, 300], dtype=torch.int32),
        "bitmask": torch.tensor([[255], [-1]], dtype=torch.int32),
        "mask_rows": torch.tensor([2, -1]),
        "lists": torch.tensor([[3, 1, 2], [5, 4, 0]]),
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def run(given: dict[str, Tensor]) -> list[Tensor]:
    """Every result, and the tensors that were written to."""
    g = {name: tensor.clone() if name in STATE else tensor for name, tensor in given.items()}
    logprobs, rows, lengths, token_ids = ops.log_softmax(g["logits"]), g["rows"], g["lengths"], g["token_ids"]
    best = ops.argmax_lowest(g["logits"])
    judged = (logprobs[rows], g["seeds"][rows], g["positions"][rows])
    verified = ops.verify_drafts(
        best, token_ids, lengths, g["is_broken"], *judged, g["pool"], g["read_slots"],
        is_certain=g["is_certain"], drawn_rows=rows,
    )  # fmt: skip
    matched = ops.match_drafts(
        ops.coupled_draw(logprobs.exp(), g["seeds"], g["positions"]), token_ids, lengths, g["is_broken"], DRAFTS
    )
    forced = ops.force_tokens(matched, g["forced_ids"], token_ids, lengths)
    hidden = ops.target_feature(g["trunk"])
    indices = ops.draft_metadata(g["write_slots"], g["last"], draft_length=DRAFTS, window_size=8, ring_length=12)
    ops.store_draft_rows(g["pool"], g["write_slots"], logprobs[:6].view(3, DRAFTS, VOCABULARY))
    ops.apply_token_bitmask(g["logits"], g["bitmask"], g["mask_rows"])
    keys = g["lists"]
    aligned = ops.align_draft_topk(keys, g["logits"][:2, :3], token_ids[:2], keys, g["mask_rows"].clamp(0, 1))
    results = [
        *(getattr(of, name) for of in (verified, matched, forced) for name in type(of).__slots__),
        *(getattr(indices, name) for name in type(indices).__slots__),
        hidden,
        ops.confidence(hidden, None, g["weight"], 2.0),
        ops.token_logprobs(logprobs, verified.token_ids),
        ops.sum_smaller_probs(logprobs, verified.token_ids),
        *ops.top_logprobs(logprobs, 3),
        *aligned,
        ops.lookup_by_key(keys, aligned[0], token_ids[:2]),
    ]
    return [*results, g["pool"], g["logits"]]


def test_every_op_that_is_called_safe_for_graphs_is_tried_here_or_with_the_inputs() -> None:
    tried_by_others = {"judge_drafts", "accepted_prefix"}  # by verify_drafts
    tried_in_other_files = {name for module in (async_inputs, *SAMPLING_MODULES) for name in module.OPS}
    called = set(run.__code__.co_names)
    assert GRAPH_SAFE_OPS - tried_in_other_files - tried_by_others <= called
    for op in GRAPH_SAFE_OPS:
        assert default_registry().select(op, "cpu").graph_safe


def test_everything_runs_on_tensors_without_contents() -> None:
    for meta, real in zip(run(example("meta")), run(example("cpu")), strict=True):
        assert meta.device.type == "meta"
        assert (meta.shape, meta.dtype) == (real.shape, real.dtype)


def check(there: list[Tensor], here: list[Tensor]) -> None:
    """Integers and flags equal, floats up to the last bits of the device's exp and log."""
    for found, expected in zip(there, here, strict=True):
        if expected.is_floating_point():
            assert torch.allclose(found.cpu(), expected, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(found.cpu(), expected)


@pytest.mark.gpu
def test_on_cuda_nothing_blocks_and_the_results_are_those_of_the_cpu(cuda: torch.device) -> None:
    given = example(cuda)
    with SyncGuard(*cuda_sync_mode()).forbid():
        got = run(given)
    check(got, run(example("cpu")))


@pytest.mark.gpu
def test_a_cuda_graph_of_it_follows_its_inputs(cuda: torch.device) -> None:
    given, changed = example(cuda), example("cpu")
    run(given)  # what is loaded at the first call cannot be loaded while capturing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run(given)
    changed["lengths"], changed["read_slots"] = torch.tensor([2, 3, 1]), torch.tensor([1, 3, 2])
    changed["write_slots"], changed["last"] = torch.tensor([0, 3, 0]), torch.tensor([-1, 5, 6], dtype=torch.int32)
    changed["mask_rows"], changed["logits"] = torch.tensor([-1, 0]), changed["logits"].flip(0)
    changed["seeds"] = changed["seeds"] + 100
    for name, tensor in changed.items():
        given[name].copy_(tensor)
    graph.replay()
    check(got, run(changed))
