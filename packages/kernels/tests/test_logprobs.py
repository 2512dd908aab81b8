"""What is reported of tokens: exact on small rows, and the same in any batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels.testing import rows_that_depend_on_the_batch

ops = bind("cpu", batch_invariant=True)
ROW = torch.log(torch.tensor([[0.25, 0.125, 0.25, 0.0, 0.375]]))


def test_the_logprob_of_an_id_outside_the_vocabulary_is_minus_infinity() -> None:
    ids = torch.tensor([4, 3, -1, 5])
    assert ops.token_logprobs(ROW.expand(4, -1), ids).exp().tolist() == pytest.approx([0.375, 0, 0, 0])


def test_the_largest_logprobs_come_in_order_the_lower_id_first() -> None:
    for count in range(6):
        values, ids = ops.top_logprobs(ROW, count)
        assert ids.tolist() == [[4, 0, 2, 1, 3][:count]]
        assert torch.equal(values, ROW[:, ids[0].long()])
        assert ids.dtype == torch.int32


@pytest.mark.parametrize("count", [1, 40, 700])
def test_the_largest_of_long_rows_are_those_of_a_stable_sort(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    logprobs = torch.randn(6, 9000, generator=generator)
    logprobs[1] = logprobs[1].round()
    logprobs[2], logprobs[3, 20:] = -torch.inf, -torch.inf
    logprobs[4, 5], logprobs[5, ::2], logprobs[5, 1::2] = torch.nan, 0.0, -0.0
    expected = torch.sort(logprobs, dim=-1, descending=True, stable=True).indices[:, :count]
    values, ids = ops.top_logprobs(logprobs, count)
    is_number = [0, 1, 2, 3, 5]
    assert torch.equal(ids[is_number].long(), expected[is_number])
    assert torch.equal(values[is_number], logprobs.gather(1, expected)[is_number])
    assert ids.shape == (6, count), "a row that is not numbers has some ids, too"


def test_the_mass_below_a_token_counts_equals_up_to_its_own_id() -> None:
    ids = torch.tensor([0, 1, 2, 3, 4, -1, 5])
    got = ops.sum_smaller_probs(ROW.expand(7, -1), ids)
    assert got.tolist() == pytest.approx([0.375, 0.125, 0.625, 0, 1, 0, 0])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_the_mass_below_a_token_is_that_of_a_loop(weights: list[int], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(weights) - 1))
    logprobs = torch.log(torch.tensor([weights]).float() / max(sum(weights), 1))
    below = [w for i, w in enumerate(weights) if (w, i) <= (weights[token], token)]
    got = float(ops.sum_smaller_probs(logprobs, torch.tensor([token])))
    assert got == pytest.approx(sum(below) / max(sum(weights), 1), abs=1e-6)


def test_reports_do_not_depend_on_the_batch() -> None:
    logprobs = ops.log_softmax(torch.randn(20, 9001, generator=torch.Generator().manual_seed(1)))
    tokens = torch.arange(20) * 449

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = logprobs[ids], tokens[ids]
        return ops.token_logprobs(*rows), ops.sum_smaller_probs(*rows), *ops.top_logprobs(rows[0], 7)

    assert rows_that_depend_on_the_batch(compute, 20, (1, 2, 17)) == []


def test_bad_input_of_reports_is_named() -> None:
    with pytest.raises(ConfigError, match="count is 6; 0 to 5, the size of the vocabulary, are accepted"):
        ops.top_logprobs(ROW, 6)
    with pytest.raises(ConfigError, match="count is -1"):
        ops.top_logprobs(ROW, -1)
    for op in (ops.token_logprobs, ops.sum_smaller_probs):
        with pytest.raises(ConfigError, match=r"token_ids has shape \[2\]; \[1\] is expected"):
            op(ROW, torch.tensor([0, 1]))
