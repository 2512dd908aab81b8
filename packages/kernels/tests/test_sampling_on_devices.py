"""Sampling reads nothing back: it runs on tensors without contents, on a device, and in a graph."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.sampling_step import SAMPLING_MODULES, WRITTEN, ops, run_sampling_step, sampling_step
from torch import Tensor

from thalweg.kernels import SyncGuard, cuda_sync_mode
from thalweg.kernels.catalog import GRAPH_SAFE_OPS


def check(there: list[Tensor], here: list[Tensor]) -> None:
    """Integers and flags equal, floats up to the last bits of the device's exp, log and division."""
    for found, expected in zip(there, here, strict=True):
        if expected.is_floating_point():
            assert torch.equal(torch.isinf(found.cpu()), torch.isinf(expected))
            assert torch.allclose(found.cpu(), expected, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found.cpu(), expected)


def test_every_sampling_op_is_safe_for_graphs_and_tried_here() -> None:
    names = {name for module in SAMPLING_MODULES for name in module.OPS}
    assert names <= GRAPH_SAFE_OPS
    assert names <= set(run_sampling_step.__code__.co_names)


def test_sampling_runs_on_tensors_without_contents() -> None:
    with torch.device("meta"):
        there = run_sampling_step(sampling_step("meta"))
    for meta, real in zip(there, run_sampling_step(sampling_step("cpu")), strict=True):
        assert meta.device.type == "meta"
        assert (meta.shape, meta.dtype) == (real.shape, real.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [40, 129_280])
@pytest.mark.parametrize("num_rows", [1, 24])
def test_on_cuda_nothing_blocks_and_the_results_are_those_of_the_cpu(
    cuda: torch.device, num_rows: int, vocabulary: int
) -> None:
    given = sampling_step(cuda, num_rows=num_rows, vocabulary=vocabulary)
    with SyncGuard(*cuda_sync_mode()).forbid():
        got = run_sampling_step(given)
    check(got, run_sampling_step(sampling_step("cpu", num_rows=num_rows, vocabulary=vocabulary)))


def decode_step(device: torch.device | str, vocabulary: int) -> dict[str, Tensor]:
    """The rows of a sampling step as eight sequences of two drafts each, drawn from flatter distributions."""
    given = sampling_step("cpu", num_rows=24, vocabulary=vocabulary)
    sequences = torch.arange(8)
    given["slots"] = (sequences % 6).repeat_interleave(3)
    given["token_ids"] = given["logits"].argmax(-1).roll(1).int()
    given["query_lengths"] = torch.full((8,), 3)
    given["is_broken"] = torch.arange(24) == 5
    given["read_slots"] = sequences + 1
    given["draft_pool"] = torch.log_softmax(given["logits"].view(8, 3, -1)[:, :2] / 2, -1)
    given["draft_pool"] = torch.cat((given["draft_pool"][:1], given["draft_pool"]))
    return {name: tensor.to(device) for name, tensor in given.items()}


def run_decode_step(given: dict[str, Tensor]) -> list[Tensor]:
    """Penalties that see the drafts, fresh draws, verification, and the counts of what was accepted."""
    logits, counts, in_prompt = (given[name].clone() for name in WRITTEN)
    amounts = given["repetition"], given["presence"], given["frequency"]
    ops.apply_penalties(logits, counts, in_prompt, given["slots"], given["step_ids"], *amounts)
    filters = given["temperature"], given["top_p"], given["top_k"], given["min_p"]
    streams = given["seeds"], given["positions"]
    sampled = ops.sample_tokens(logits, *filters, *streams)
    verified = ops.verify_drafts(
        ops.argmax_lowest(logits),
        given["token_ids"],
        given["query_lengths"],
        given["is_broken"],
        ops.filtered_logprobs(logits, *filters),
        *streams,
        given["draft_pool"],
        given["read_slots"],
    )
    newest = torch.cat((verified.accepted_ids, verified.token_ids[verified.last_rows][:, None]), 1)
    ops.count_tokens(counts, given["slots"][::3], newest)
    return [logits, sampled, *(getattr(verified, name) for name in type(verified).__slots__), counts]


def test_a_decode_step_runs_on_tensors_without_contents() -> None:
    for meta, real in zip(
        run_decode_step(decode_step("meta", 40)), run_decode_step(decode_step("cpu", 40)), strict=True
    ):
        assert (meta.shape, meta.dtype) == (real.shape, real.dtype)


def test_the_decode_step_accepts_some_drafts_and_refuses_others() -> None:
    accepted = run_decode_step(decode_step("cpu", 40))[6]
    assert 0 < int(accepted.sum()) < 16


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [40, 129_280])
def test_a_cuda_graph_of_a_decode_step_follows_its_inputs(cuda: torch.device, vocabulary: int) -> None:
    given, changed = decode_step(cuda, vocabulary), decode_step("cpu", vocabulary)
    run_decode_step(given)  # what is loaded at the first call cannot be loaded while capturing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run_decode_step(given)
    graph.replay()
    check(got, run_decode_step(changed))
    for name in ("logits", "temperature", "min_p", "slots", "repetition", "frequency", "seeds", "read_slots"):
        changed[name] = changed[name].flip(0)
    for name, tensor in changed.items():
        given[name].copy_(tensor)
    graph.replay()
    check(got, run_decode_step(changed))
