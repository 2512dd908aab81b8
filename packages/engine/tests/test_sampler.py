from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_testing.sampling import forbidding, sampler_inputs

from thalweg.engine.sampler import Sampler
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.sampling_row import SamplingRow
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
    rows = [
        SamplingRow(temperature=temperature, top_p=top_p, top_k=top_k, seed=index if seeds is None else seeds[index])
        for index, temperature in enumerate(temperatures)
    ]
    return sampler_inputs(rows, edits=forbidding(forbidden))


def sample(sampler: Sampler, logits: torch.Tensor, inputs: SamplerInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, broken rows)"""
    broken = sampler.clean(logits, inputs).broken
    return sampler.draw(logits, inputs), broken


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
        drawn = sample(sampler, logits.clone(), make_inputs(temperatures))[0]
        assert drawn[:3].tolist() == expected[:3].tolist()
    assert drawn.dtype == torch.int32


def test_a_row_draws_the_same_token_alone_and_in_a_batch(sampler: Sampler, logits: torch.Tensor) -> None:
    together = sample(sampler, logits.clone(), make_inputs([1.0] * 6, top_p=0.9, top_k=20))[0]
    for row in range(6):
        alone = make_inputs([1.0], top_p=0.9, top_k=20, seeds=[row])
        alone.sample_positions[:] = row + 5
        assert sample(sampler, logits[row : row + 1].clone(), alone)[0].tolist() == [together[row]]


def test_the_largest_seed_is_accepted(sampler: Sampler, logits: torch.Tensor) -> None:
    inputs = make_inputs([1.0] * 6, seeds=[2**64 - 1] * 6)
    assert (sample(sampler, logits, inputs)[0] >= 0).all()


def test_forbidden_tokens_are_never_drawn(sampler: Sampler, logits: torch.Tensor) -> None:
    best = logits.argmax(dim=-1).tolist()
    inputs = make_inputs([0.0] * 6, forbidden=[(0, best[0]), (4, best[4])])
    drawn = sample(sampler, logits, inputs)[0].tolist()
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
    clean, broken = sample(sampler, logits.clone(), make_inputs([temperature] * 6))
    assert not broken.any()
    logits[1, 3] = torch.nan
    logits[2, 4] = torch.inf
    logits[3] = -torch.inf
    token_ids, broken = sample(sampler, logits, make_inputs([temperature] * 6))
    assert broken.tolist() == [False, True, True, True, False, False]
    assert (token_ids[~broken] == clean[~broken]).all()
    assert (token_ids >= 0).all()


def test_rows_without_a_sequence_are_our_bug(sampler: Sampler, logits: torch.Tensor) -> None:
    with pytest.raises(InvariantError, match="6 rows of logits for 2 sampled rows"):
        sampler.clean(logits, make_inputs([1.0, 1.0]))


def test_coupled_rows_draw_by_the_index_of_their_own_token(logits: torch.Tensor) -> None:
    """Three rows of one step say what three steps of one row each would."""
    sampler = Sampler(bind("cpu"), Uploader(CpuBackend()), is_coupled=True)
    one_step = make_inputs([1.0], seeds=[7])
    one_step.sample_positions[:] = 20
    rows = replace(one_step, sequence_rows=np.zeros(3, np.int64))
    together = sample(sampler, logits[:3].clone(), rows)[0].tolist()
    for row in range(3):
        one_step.sample_positions[:] = 20 + row
        assert sample(sampler, logits[row : row + 1].clone(), one_step)[0].tolist() == [together[row]]
