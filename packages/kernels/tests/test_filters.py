"""Filters: the plain rule, ties, rows that are hardly distributions, and the two ways of computing them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_testing.plain_filters import kept_ids
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels.reference.filters import listed_logprobs, sorted_logprobs
from thalweg.kernels.reference.prefix import FIRST_SHARE, SHORT_ROW, Filters

ops = bind("cpu", batch_invariant=True)
LONG = 2 * SHORT_ROW
OFF = (1.0, -1, 0.0)

levels = st.one_of(st.integers(-6, 6).map(lambda level: level / 2), st.just(-float("inf")), st.just(-0.0))
rows_of_logits = st.lists(levels, min_size=1, max_size=12).filter(lambda row: max(row) > -float("inf"))
shares = st.integers(1, 1023).map(lambda part: part / 1024)  # exact in float32
parameters = st.tuples(
    st.one_of(st.just(1.0), shares),
    st.one_of(st.just(-1), st.integers(1, 15)),
    st.one_of(st.just(0.0), st.just(1.0), shares),
)


def columns(given_filters: list[tuple[float, int, float]]) -> tuple[Tensor, Tensor, Tensor]:
    top_p, top_k, min_p = zip(*given_filters, strict=True)
    return torch.tensor(top_p), torch.tensor(top_k), torch.tensor(min_p)


@given(rows_of_logits, st.lists(parameters, min_size=1, max_size=4))
def test_survivors_are_those_of_the_plain_rule(logits: list[float], chosen: list[tuple[float, int, float]]) -> None:
    rows, filters = torch.tensor([logits] * len(chosen)), columns(chosen)
    expected = [sorted(kept_ids(logits, *row)) for row in chosen]
    kept = ops.filter_mask(rows, *filters)
    assert [row.nonzero().flatten().tolist() for row in kept] == expected
    logprobs = ops.filtered_logprobs(rows, torch.ones(len(chosen)), *filters)
    for row, ids in zip(logprobs, expected, strict=True):
        possible = torch.tensor(logits)[ids]
        assert torch.allclose(row[ids], torch.log_softmax(possible.double(), -1).float(), rtol=1e-6, atol=1e-6)
        assert torch.isinf(row).sum() == len(logits) - len(ids) + torch.isinf(possible).sum()


def long_rows(scale: float) -> Tensor:
    """Rows of which the filters keep few tokens or many, more than the selection looks at first."""
    generator = torch.Generator().manual_seed(round(100 * scale))
    logits = torch.randn(12, LONG, generator=generator) * scale
    logits[3:6] = logits[3:6].round()  # thousands of ties
    logits[6] = 0.0
    logits[7, 1:] = -torch.inf
    logits[8, ::2] = -torch.inf
    return logits


def long_filters() -> tuple[Tensor, Tensor, Tensor]:
    row = torch.arange(12)
    return (
        torch.tensor([0.9, 1.0, 0.3, 0.99])[row % 4],
        torch.tensor([-1, 50, LONG // FIRST_SHARE, LONG // FIRST_SHARE + 1, LONG - 1])[row % 5],
        torch.tensor([0.0, 0.05, 1e-4])[row % 3],
    )


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_selecting_the_largest_gives_the_bits_of_sorting_all(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, filters = long_rows(scale), Filters(*long_filters())
    selected = listed_logprobs(logits, filters)
    mask = ops.filter_mask(logits, filters.top_p, filters.top_k, filters.min_p)
    assert torch.equal(torch.isfinite(selected) | torch.isinf(logits), mask | torch.isinf(logits))
    monkeypatch.setattr("thalweg.kernels.reference.prefix.SHORT_ROW", LONG)
    assert torch.equal(sorted_logprobs(logits, filters), selected)
    assert torch.equal(ops.filter_mask(logits, filters.top_p, filters.top_k, filters.min_p), mask)


@pytest.mark.parametrize("vocabulary", [50, LONG])
def test_drawing_from_the_survivors_is_drawing_from_whole_rows(vocabulary: int) -> None:
    num_rows = 40
    logits = 2 * torch.randn(num_rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    row = torch.arange(num_rows)
    filters = (
        torch.tensor([1.0, 0.6, 0.0])[row % 3],
        torch.tensor([1.0, 0.9, 1.0, 1.0])[row % 4],
        torch.tensor([-1, -1, 20, -1, 7])[row % 5],
        torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.02])[row % 7],
    )
    streams = row * 7919, row * 3
    weights = ops.filtered_logprobs(logits, *filters).exp()
    best, is_greedy = ops.argmax_lowest(logits), row % 3 == 2
    drawn = torch.where(is_greedy, best, ops.draw(weights, ops.uniform(*streams)))
    assert torch.equal(ops.sample_tokens(logits, *filters, *streams), drawn)
    coupled = torch.where(is_greedy, best, ops.coupled_draw(weights, *streams))
    assert torch.equal(ops.coupled_tokens(logits, *filters, *streams), coupled)


@pytest.mark.parametrize("filters", [OFF, (0.5, -1, 0.0), (1.0, 3, 0.0), (1.0, -1, 0.5), (0.5, 3, 0.5)])
@pytest.mark.parametrize("vocabulary", [1, 9, LONG])
def test_degenerate_rows(filters: tuple[float, int, float], vocabulary: int) -> None:
    """Rows: one token far above all; all equal; one possible token; no possible token; not a number."""
    logits = torch.zeros(5, vocabulary)
    logits[0, 0] = 1e30
    logits[2, :-1] = logits[3] = -torch.inf
    logits[4, 0] = torch.nan
    chosen = columns([filters] * 5)
    top_p, top_k, _ = filters
    num_equal = min(vocabulary, int(top_p * vocabulary) + 1, top_k if top_k > 0 else vocabulary)
    for draw in (ops.sample_tokens, ops.coupled_tokens):
        for position in range(20):
            streams = torch.arange(5), torch.full((5,), position)
            tokens = draw(logits, torch.ones(5), *chosen, *streams).tolist()
            assert tokens[0] == 0
            assert 0 <= tokens[1] < num_equal
            assert tokens[2:] == [vocabulary - 1, -1, -1]
    logprobs = ops.filtered_logprobs(logits, torch.ones(5), *chosen)
    assert logprobs[0, 0] == 0
    assert logprobs[2].tolist() == [-torch.inf] * (vocabulary - 1) + [0.0]


def test_a_row_that_the_temperature_would_send_to_infinity_keeps_its_order() -> None:
    logits = torch.tensor([[3e38, 3e38, 1e38, -3e38], [1.0, 0.0, 0.0, 0.0]])
    temperature = torch.tensor([0.5, 1.0])
    for filters in (OFF, (0.9, -1, 0.0), (0.9, 1, 0.5)):
        for rows in ([0], [0, 1]):
            given_rows = logits[rows], temperature[rows], *columns([filters] * len(rows))
            logprobs = ops.filtered_logprobs(*given_rows)
            most_likely = [0.0, -torch.inf] if filters[1] == 1 else [torch.tensor(0.5).log()] * 2
            assert logprobs[0].tolist() == [*most_likely, -torch.inf, -torch.inf]
            for draw in (ops.sample_tokens, ops.coupled_tokens):
                tokens = draw(*given_rows, torch.arange(len(rows)), torch.arange(len(rows)))
                assert tokens[0] in (0, 1)
                assert bool((tokens >= 0).all())


def test_equal_tokens_are_cut_by_their_ids() -> None:
    logits, off = torch.zeros(3, LONG), torch.zeros(3)
    kept = ops.filter_mask(logits, torch.tensor([0.25, 1.0, 1.0]), torch.tensor([-1, 7, LONG - 1]), off)
    counts = [LONG // 4 + 1, 7, LONG - 1]  # the mass before a token may equal top-p
    assert kept.sum(-1).tolist() == counts
    for row, count in zip(kept, counts, strict=True):
        assert bool(row[:count].all())


@pytest.mark.parametrize("vocabulary", [50, LONG])
def test_no_number_of_tokens_is_no_limit(vocabulary: int) -> None:
    logits, top_p, off = torch.zeros(3, vocabulary), torch.tensor([0.5, 0.5, 1.0]), torch.zeros(3)
    kept = ops.filter_mask(logits, top_p, torch.tensor([0, -1, 0]), off)
    assert kept.sum(-1).tolist() == [vocabulary // 2 + 1, vocabulary // 2 + 1, vocabulary]


def test_min_p_compares_with_the_most_probable_token_whatever_else_is_filtered() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    for min_p, expected in ((0.0, 4), (0.2, 4), (0.26, 3), (0.51, 2), (0.76, 1), (1.0, 1)):
        kept = ops.filter_mask(logits, torch.ones(1), torch.tensor([-1]), torch.tensor([min_p]))
        assert int(kept.sum()) == expected, min_p
    kept = ops.filter_mask(logits, torch.tensor([0.65]), torch.tensor([3]), torch.tensor([0.6]))
    assert kept.tolist() == [[True, True, False, False]]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_filters_see_the_tempered_distribution(temperature: float) -> None:
    logits = torch.tensor([3.0, 2.5, 2.0, 1.0, 0.0, -1.0])
    got = ops.filtered_logprobs(logits[None], torch.tensor([temperature]), *columns([(0.8, -1, 0.1)]))
    kept = kept_ids((logits / temperature).tolist(), 0.8, -1, 0.1)
    assert torch.isfinite(got[0]).nonzero().flatten().tolist() == kept


@given(rows_of_logits, st.integers(1, 14))
@settings(max_examples=50)
def test_the_largest_logits_are_kept_in_place(logits: list[float], count: int) -> None:
    rows = torch.tensor([logits, logits[::-1]])
    expected = rows.clone()
    for row in expected:
        order = sorted(range(len(logits)), key=lambda token: (-float(row[token]), token))
        row[order[count:]] = -torch.inf
    ops.keep_largest(rows, count)
    assert torch.equal(rows, expected)


def test_a_list_of_no_tokens_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match="count is 0; an integer from 1 to"):
        ops.keep_largest(torch.zeros(2, 4), 0)


def test_bad_shapes_are_named() -> None:
    logits, one, off = torch.zeros(2, 4), torch.ones(2), torch.full((2,), -1)
    for place, name in enumerate(("temperature", "top_p", "top_k", "min_p")):
        parameters_of_rows = [one, one, off, 0 * one]
        parameters_of_rows[place] = torch.ones(3)
        message = rf"{name} has shape \[3\]; \[2\] is expected"
        with pytest.raises(ConfigError, match=message):
            ops.filtered_logprobs(logits, *parameters_of_rows)
        for draw in (ops.sample_tokens, ops.coupled_tokens):
            with pytest.raises(ConfigError, match=message):
                draw(logits, *parameters_of_rows, off, off)
        if name != "temperature":
            with pytest.raises(ConfigError, match=message):
                ops.filter_mask(logits, *parameters_of_rows[1:])
