"""Sampling on Hopper: tokens, masks and selections equal to the reference's, whatever the rows are."""

from __future__ import annotations

import math

import pytest
import torch
from kernels_testing import sampling_step as steps
from kernels_testing.logit_rows import KINDS, filters_of, logits_of, on, streams_of

from thalweg.kernels import SyncGuard, bind, cuda_sync_mode

reference = bind("cpu")
kernels = bind("sm90")
ROWS = 24


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [1, 40, 4096, 20_001, 129_280])
def test_rows_are_those_of_the_reference(kind: str, vocabulary: int, hopper: torch.device) -> None:
    logits, filters, streams = logits_of(kind, ROWS, vocabulary), filters_of(ROWS), streams_of(ROWS)
    here, given, drawn = logits.to(hopper), on(hopper, *filters), on(hopper, *streams)
    assert torch.equal(kernels.filter_mask(here, *given[1:]).cpu(), reference.filter_mask(logits, *filters[1:]))
    assert torch.equal(kernels.argmax_lowest(here).cpu(), reference.argmax_lowest(logits))
    expected = reference.filtered_logprobs(logits, *filters)
    got = kernels.filtered_logprobs(here, *given).cpu()
    assert torch.equal(got.isinf(), expected.isinf())
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(kernels.log_softmax(here).cpu(), reference.log_softmax(logits), rtol=1e-6, atol=1e-6)
    for op in ("sample_tokens", "coupled_tokens"):
        tokens = getattr(kernels, op)(here, *given, *drawn).cpu()
        assert torch.equal(tokens, getattr(reference, op)(logits, *filters, *streams))
    for count in {1, min(5, vocabulary), min(1000, vocabulary)}:
        kept, kept_here = logits.clone(), here.clone()
        reference.keep_largest(kept, count)
        kernels.keep_largest(kept_here, count)
        assert torch.equal(kept_here.cpu(), kept)
        largest, ids = kernels.top_logprobs(here, count)
        expected_largest, expected_ids = reference.top_logprobs(logits, count)
        assert torch.equal(largest.cpu(), expected_largest)
        assert torch.equal(ids.cpu(), expected_ids)


@pytest.mark.gpu
@pytest.mark.sm90
def test_of_many_draws_hardly_any_is_decided_by_the_last_bit_of_an_exponential(hopper: torch.device) -> None:
    """Per draw of a flat row of 129,280 tokens about 1e-5; 256 draws differ 0.003 times, and 1 is allowed."""
    logits = logits_of("normal", 64, 129_280)
    differing = 0
    for turn in range(4):
        filters = (
            torch.full((64,), 1.0),
            torch.full((64,), (1.0, 0.9)[turn % 2]),
            torch.full((64,), -1),
            torch.zeros(64),
        )
        streams = torch.arange(64) + 64 * turn, torch.full((64,), turn)
        got = kernels.sample_tokens(logits.to(hopper), *on(hopper, *filters, *streams)).cpu()
        differing += int((got != reference.sample_tokens(logits, *filters, *streams)).sum())
    assert differing <= 1


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_without_a_finite_largest_logit_yield_nothing(bad: float, hopper: torch.device) -> None:
    logits = logits_of("normal", 4, 5000)
    logits[1, 77], logits[2] = bad, bad
    filters, streams = on(hopper, *filters_of(4)), on(hopper, *streams_of(4))
    expected = reference.argmax_lowest(logits) < 0
    assert torch.equal(kernels.argmax_lowest(logits.to(hopper)).cpu() < 0, expected)
    for op in (kernels.sample_tokens, kernels.coupled_tokens):
        assert torch.equal(op(logits.to(hopper), *filters, *streams).cpu() < 0, expected)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("vocabulary", [40, 4096, 129_280])
def test_a_row_is_the_same_alone_elsewhere_and_apart(vocabulary: int, hopper: torch.device) -> None:
    logits, filters, streams = logits_of("ties", ROWS, vocabulary), filters_of(ROWS), streams_of(ROWS)
    here, given = logits.to(hopper), on(hopper, *filters, *streams)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).to(hopper)
    apart = torch.full((ROWS, vocabulary + 3), math.nan, device=hopper)[:, 1 : vocabulary + 1]
    apart.copy_(here)
    for op, count in (("filtered_logprobs", 4), ("sample_tokens", 6), ("coupled_tokens", 6)):
        call = getattr(kernels, op)
        whole = call(here, *given[:count])
        assert torch.equal(call(here[order], *(g[order] for g in given[:count])), whole[order])
        assert torch.equal(call(apart, *given[:count]), whole)
        assert torch.equal(
            torch.cat([call(here[i : i + 1], *(g[i : i + 1] for g in given[:count])) for i in (0, 7)]), whole[[0, 7]]
        )


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("vocabulary", [40, 129_280])
@pytest.mark.parametrize("num_rows", [1, 24])
def test_a_sampling_step_reads_nothing_back_and_is_that_of_the_cpu(
    num_rows: int, vocabulary: int, hopper: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = steps.run_sampling_step(steps.sampling_step("cpu", num_rows=num_rows, vocabulary=vocabulary))
    given = steps.sampling_step(hopper, num_rows=num_rows, vocabulary=vocabulary)
    monkeypatch.setattr(steps, "ops", kernels)
    steps.run_sampling_step(given)
    with SyncGuard(*cuda_sync_mode()).forbid():
        got = steps.run_sampling_step(given)
    for found, wanted in zip(got, expected, strict=True):
        if wanted.is_floating_point():
            assert torch.equal(found.cpu().isinf(), wanted.isinf())
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.sm90
def test_a_graph_follows_its_inputs(hopper: torch.device) -> None:
    logits, given = logits_of("peaked", ROWS, 129_280).to(hopper), on(hopper, *filters_of(ROWS), *streams_of(ROWS))
    kernels.sample_tokens(logits, *given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = kernels.sample_tokens(logits, *given)
    other = logits_of("normal", ROWS, 129_280, 5)
    logits.copy_(other)
    given[4].add_(17)
    graph.replay()
    expected = reference.sample_tokens(other, *filters_of(ROWS), streams_of(ROWS)[0] + 17, streams_of(ROWS)[1])
    assert torch.equal(tokens.cpu(), expected)
