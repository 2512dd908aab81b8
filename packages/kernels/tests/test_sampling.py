"""Random numbers, filters and draws: recorded values, exact rules, and the distribution they give.

Recorded keys: sampling/rng (seed, position, case, combined_hex, u, u_bits_hex), random_sampling (probs, seeds,
positions, token_splitmix_case0 and 1), top_p_top_k (all), and the filters of verify_step (temperatures, top_ps, top_ks,
logits, row_to_req, logprobs). philox_u32, philox_uniform_f32 and token_fixed31_* record another generator, which this
package does not have. The rest of verify_step is read in test_recorded_verification, forced_topk in test_topk_lists,
bitmask in test_bitmask, toy_lm_tables and toy_lm_runs in test_recorded_runs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.filters import filter_mask, filtered_logprobs
from thalweg.kernels.reference.random_numbers import hash_input, splitmix_hash, uniform
from thalweg.kernels.reference.sampling import draw, sample_tokens
from thalweg.kernels.reference.vocabulary_rows import argmax_lowest, descending, log_softmax
from thalweg.kernels.testing import RecordLoader, VectorLoader

MASK = 2**64 - 1


def slow_splitmix(x: int) -> int:
    """The generator in unbounded integers."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def seeds_of(values: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array([value & MASK for value in values], dtype=np.uint64))


def test_recorded_random_numbers_are_reproduced_bit_for_bit(recorded: RecordLoader) -> None:
    for entry in recorded("sampling/rng"):
        seeds, positions = seeds_of([int(entry["seed"])]), torch.tensor([entry["position"]])
        mixed = int(hash_input(seeds, positions, entry["case"])) & MASK
        assert f"{mixed:016x}" == entry["combined_hex"]
        u = uniform(seeds, positions, entry["case"])
        assert u.numpy().astype(">f8").tobytes().hex() == entry["u_bits_hex"]
        assert u.item() == entry["u"]


def test_the_hash_equals_one_in_unbounded_integers() -> None:
    values = [0, 1, 2**63 - 1, 2**63, MASK, 0x123456789ABCDEF]
    got = splitmix_hash(seeds_of(values).view(torch.int64)).tolist()
    assert [value & MASK for value in got] == [slow_splitmix(value) for value in values]


def test_signed_and_unsigned_seeds_are_the_same_64_bits() -> None:
    positions = torch.arange(4)
    unsigned = seeds_of([-1, -2, 5, 2**63])
    assert torch.equal(uniform(unsigned, positions), uniform(unsigned.view(torch.int64), positions))


@pytest.mark.parametrize("size", ["v64", "v1000", "v9000"])
@pytest.mark.parametrize("case", [0, 1])
def test_recorded_draws_are_reproduced(size: str, case: int, vectors: VectorLoader) -> None:
    d = vectors("sampling/random_sampling")
    u = uniform(d[f"{size}_seeds"], d[f"{size}_positions"], case)
    assert torch.equal(draw(d[f"{size}_probs"], u), d[f"{size}_token_splitmix_case{case}"])


def test_recorded_filters_are_reproduced(vectors: VectorLoader) -> None:
    d = vectors("sampling/top_p_top_k")
    assert torch.equal(filter_mask(d["logits"], d["top_p"], d["top_k"], torch.zeros(40)), d["kept"])
    logprobs = filtered_logprobs(d["logits"], torch.ones(40), d["top_p"], d["top_k"], torch.zeros(40))
    assert torch.equal(torch.isinf(logprobs), torch.isinf(d["logprobs"]))
    assert torch.allclose(logprobs[d["kept"]], d["logprobs"][d["kept"]], rtol=0, atol=1e-5)


def test_recorded_processed_logprobs_of_a_step_are_reproduced(vectors: VectorLoader) -> None:
    d = vectors("sampling/verify_step")
    request = d["row_to_req"].long()
    filters = (d[key][request] for key in ("temperatures", "top_ps", "top_ks"))
    logprobs = filtered_logprobs(d["logits"], *filters, torch.zeros(len(request)))
    finite = torch.isfinite(d["logprobs"])
    assert torch.equal(torch.isfinite(logprobs), finite)
    assert torch.allclose(logprobs[finite], d["logprobs"][finite], rtol=0, atol=1e-5)


def test_a_token_of_zero_weight_is_never_drawn() -> None:
    weights = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0]])
    u = torch.cat((torch.zeros(1), torch.linspace(0, 1, 100)[:-1], torch.tensor([1 - 2**-53]))).double()
    assert set(draw(weights.expand(len(u), -1), u).tolist()) == {1, 3}


def test_the_last_positive_token_is_drawn_when_rounding_leaves_none() -> None:
    weights = torch.tensor([[5e-324, 5e-324, 0.0]], dtype=torch.float64)
    # The threshold rounds up to the total itself, so no running sum exceeds it.
    assert draw(weights, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [1]


def test_a_row_without_mass_is_reported() -> None:
    weights = torch.tensor([[0.0, 0.0], [1.0, math.inf], [1.0, math.nan], [1.0, 1.0]])
    assert draw(weights, torch.full((4,), 0.25, dtype=torch.float64)).tolist() == [-1, -1, -1, 0]


def test_top_p_keeps_the_token_that_exceeds_and_one_that_only_reaches() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64))
    # Mass before the tokens: 0, .5, .75, .875. A mass equal to top_p does not close the set.
    for top_p, expected in ((0.4, 1), (0.5, 2), (0.74, 2), (0.75, 3), (0.9, 4)):
        kept = filter_mask(logits, torch.tensor([top_p], dtype=torch.float64), torch.tensor([-1]), torch.zeros(1))
        assert int(kept.sum()) == expected, top_p


def test_ties_are_kept_from_the_lower_id_and_signed_zeros_tie() -> None:
    logits = torch.tensor([[0.0, -0.0, 0.0, -0.0]])
    kept = filter_mask(logits, torch.ones(1), torch.tensor([2]), torch.zeros(1))
    assert kept.tolist() == [[True, True, False, False]]
    assert argmax_lowest(torch.tensor([[-0.0, 0.0], [1.0, 1.0]])).tolist() == [0, 0]


def test_at_least_one_token_survives_any_top_p() -> None:
    logits = torch.zeros(1, 50)
    assert int(filter_mask(logits, torch.tensor([1e-9]), torch.tensor([-1]), torch.zeros(1)).sum()) == 1


def test_greedy_rows_take_the_lowest_of_equal_maxima_whatever_the_seed() -> None:
    logits = torch.tensor([[1.0, 4.0, 4.0, 0.0]]).expand(50, -1)
    zero = torch.zeros(50)
    filters = torch.full((50,), 0.1), torch.full((50,), 1), torch.full((50,), 0.9)
    tokens = sample_tokens(logits, zero, *filters, torch.arange(50), torch.arange(50))
    assert tokens.dtype == torch.int32
    assert tokens.tolist() == [1] * 50


def test_greedy_logprobs_are_those_of_a_tiny_temperature_without_filters() -> None:
    logits = torch.tensor([[1.0, 1.0 + 1e-6, 0.5]])
    logprobs = filtered_logprobs(
        logits, torch.tensor([0.0]), torch.tensor([0.01]), torch.tensor([1]), torch.tensor([0.5])
    )
    assert bool(torch.isfinite(logprobs).all())
    filtered = filtered_logprobs(
        logits, torch.tensor([1e-5]), torch.tensor([0.01]), torch.tensor([1]), torch.tensor([0.5])
    )
    assert torch.isinf(filtered[0]).tolist() == [True, False, True]


def test_a_row_without_a_finite_logit_gives_no_token() -> None:
    logits = torch.tensor([[-torch.inf, -torch.inf], [torch.nan, 0.0], [0.0, 1.0]])
    off = (torch.ones(3), torch.full((3,), -1), torch.zeros(3))
    for temperature in (0.0, 1.0):
        tokens = sample_tokens(logits, torch.full((3,), temperature), *off, torch.arange(3), torch.arange(3))
        assert tokens.tolist()[:2] == [-1, -1]
        assert tokens[2] >= 0


@pytest.mark.parametrize("vocabulary", [8, 64, 1000])
def test_draws_follow_the_distribution(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(1, vocabulary, generator=generator)
    count = 40 * vocabulary + 4000
    logprobs = filtered_logprobs(logits, torch.ones(1), torch.ones(1), torch.tensor([-1]), torch.zeros(1))
    u = uniform(torch.full((count,), 12345), torch.arange(count))
    tokens = torch.cat([draw(torch.exp(logprobs).expand(len(part), -1), part) for part in u.split(1000)])
    expected = torch.softmax(logits[0].double(), -1) * count
    observed = torch.bincount(tokens.long(), minlength=vocabulary).double()
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = vocabulary - 1
    assert chi_square < degrees + 3.1 * math.sqrt(2 * degrees) + 6  # about the 99.9 % point


def test_log_softmax_of_masked_rows_keeps_the_mask() -> None:
    logprobs = log_softmax(torch.tensor([[0.0, -torch.inf, 0.0]]))
    assert logprobs.dtype == torch.float32
    assert logprobs[0].tolist() == pytest.approx([-math.log(2), -math.inf, -math.log(2)])


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="case is 3; 0"):
        uniform(torch.zeros(1).long(), torch.zeros(1).long(), 3)
    with pytest.raises(ConfigError, match=r"seeds have dtype torch\.float32; uint64 or int64"):
        uniform(torch.zeros(1), torch.zeros(1).long())
    with pytest.raises(ConfigError, match=r"u has dtype torch\.float32; float64 is required"):
        draw(torch.ones(1, 4), torch.zeros(1))
    with pytest.raises(ConfigError, match=r"u has shape \[2\]; \[1\] is expected"):
        draw(torch.ones(1, 4), torch.zeros(2).double())
    with pytest.raises(ConfigError, match="weights have no columns"):
        draw(torch.ones(1, 0), torch.zeros(1).double())


def test_the_order_of_float32_logits_is_that_of_a_stable_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.cat((torch.randint(-3, 4, (6, 300), generator=generator).float(), torch.randn(6, 300) * 1e30), -1)
    logits[0, ::7] = -torch.inf
    logits[1, ::5], logits[1, 1::5] = 0.0, -0.0
    expected = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    assert torch.equal(descending(logits), expected)
    assert torch.equal(descending(logits.double()), expected)
