from dataclasses import replace

import numpy as np
import pytest
import torch

from thalweg.engine.sampler import Sampler
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.upload import Uploader
from thalweg.interfaces import InvariantError
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend

NO_PAIRS: list[tuple[int, int]] = []


def make_inputs(
    temperatures: list[float],
    *,
    top_p: float = 1.0,
    top_k: int = -1,
    seeds: list[int] | None = None,
    forbidden: list[tuple[int, int]] = NO_PAIRS,
) -> SamplerInputs:
    count = len(temperatures)
    pairs = np.array(forbidden, np.int64).reshape(-1, 2)
    return SamplerInputs(
        sequence_ids=np.arange(count),
        has_drafts=False,
        sequence_rows=np.arange(count),
        first_rows=np.arange(count),
        temperatures=np.array(temperatures, np.float32),
        top_ps=np.full(count, top_p, np.float32),
        top_ks=np.full(count, top_k, np.int32),
        min_ps=np.zeros(count, np.float32),
        seeds=np.array(range(count) if seeds is None else seeds, np.uint64),
        sample_positions=np.arange(count) + 5,
        eos_token_ids=np.full(count, -1, np.int32),
        forbidden_rows=pairs[:, 0].copy(),
        forbidden_ids=pairs[:, 1].copy(),
        draft_read_slots=np.zeros(count, np.int32),
        draft_write_slots=np.zeros(count, np.int32),
    )


@pytest.fixture
def sampler() -> Sampler:
    return Sampler(bind("cpu"), Uploader(CpuBackend()))


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(6, 50, generator=torch.Generator().manual_seed(1))


def test_greedy_rows_take_the_lowest_id_among_the_largest(sampler: Sampler, logits: torch.Tensor) -> None:
    logits[2, [7, 9]] = 30.0
    expected = logits.argmax(dim=-1)
    expected[2] = 7
    for temperatures in ([0.0] * 6, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]):
        drawn = sampler.sample(logits.clone(), make_inputs(temperatures)).token_ids
        assert drawn[:3].tolist() == expected[:3].tolist()
    assert drawn.dtype == torch.int32


def test_a_row_draws_the_same_token_alone_and_in_a_batch(sampler: Sampler, logits: torch.Tensor) -> None:
    together = sampler.sample(logits.clone(), make_inputs([1.0] * 6, top_p=0.9, top_k=20)).token_ids
    for row in range(6):
        alone = make_inputs([1.0], top_p=0.9, top_k=20, seeds=[row])
        alone.sample_positions[:] = row + 5
        assert sampler.sample(logits[row : row + 1].clone(), alone).token_ids.tolist() == [together[row]]


def test_the_largest_seed_is_accepted(sampler: Sampler, logits: torch.Tensor) -> None:
    inputs = make_inputs([1.0] * 6, seeds=[2**64 - 1] * 6)
    assert (sampler.sample(logits, inputs).token_ids >= 0).all()


def test_forbidden_tokens_are_never_drawn(sampler: Sampler, logits: torch.Tensor) -> None:
    best = logits.argmax(dim=-1).tolist()
    inputs = make_inputs([0.0] * 6, forbidden=[(0, best[0]), (4, best[4])])
    drawn = sampler.sample(logits, inputs).token_ids.tolist()
    assert [token == wanted for token, wanted in zip(drawn, best, strict=True)] == [
        False,
        True,
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_numbers_is_marked_and_harms_no_other(
    sampler: Sampler, logits: torch.Tensor, temperature: float
) -> None:
    clean = sampler.sample(logits.clone(), make_inputs([temperature] * 6))
    assert not clean.broken_rows.any()
    logits[1, 3] = torch.nan
    logits[2, 4] = torch.inf
    logits[3] = -torch.inf
    sampled = sampler.sample(logits, make_inputs([temperature] * 6))
    assert sampled.broken_rows.tolist() == [False, True, True, True, False, False]
    kept = ~sampled.broken_rows
    assert (sampled.token_ids[kept] == clean.token_ids[kept]).all()
    assert (sampled.token_ids >= 0).all()


def test_rows_without_a_sequence_are_our_bug(sampler: Sampler, logits: torch.Tensor) -> None:
    with pytest.raises(InvariantError, match="6 rows of logits for 2 sampled rows"):
        sampler.sample(logits, make_inputs([1.0, 1.0]))


def test_coupled_rows_draw_by_the_index_of_their_own_token(logits: torch.Tensor) -> None:
    """Three rows of one step say what three steps of one row each would."""
    sampler = Sampler(bind("cpu"), Uploader(CpuBackend()), is_coupled=True)
    one_step = make_inputs([1.0], seeds=[7])
    one_step.sample_positions[:] = 20
    rows = replace(one_step, sequence_rows=np.zeros(3, np.int64))
    together = sampler.sample(logits[:3].clone(), rows).token_ids.tolist()
    for row in range(3):
        one_step.sample_positions[:] = 20 + row
        assert sampler.sample(logits[row : row + 1].clone(), one_step).token_ids.tolist() == [together[row]]
