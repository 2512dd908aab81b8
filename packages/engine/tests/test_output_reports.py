"""Log-probabilities and draws of a step, as users get them."""

import numpy as np
import pytest

from thalweg.engine.output_reports import LOWEST_LOGPROB, DrawReport, LogprobReport
from thalweg.engine.row_reports import RowDraws, RowLogprobs
from thalweg.interfaces import InvariantError, TokenDraw


def report(
    tokens: list[tuple[int, float]], tops: list[list[tuple[int, float]]], offsets: list[int] | None = None
) -> LogprobReport:
    width = len(tops[0])
    return LogprobReport(
        RowLogprobs(
            offsets=np.array([0, len(tokens)] if offsets is None else offsets),
            token_ids=np.array([token for token, _ in tokens], np.int32),
            logprobs=np.array([value for _, value in tokens], np.float32),
            top_ids=np.array([[token for token, _ in top] for top in tops], np.int32).reshape(len(tops), width),
            top_logprobs=np.array([[value for _, value in top] for top in tops], np.float32).reshape(len(tops), width),
        )
    )


def entries(reported: LogprobReport, token: int, num_alternatives: int) -> list[tuple[int, float]]:
    (mapping,) = reported.take(0, [token], num_alternatives)
    return list(mapping.items())


TOP = [(4, -0.5), (2, -1.5), (9, -1.5), (7, -3.0)]


@pytest.mark.parametrize(
    ("token", "count", "expected"),
    [
        ((4, -0.5), 4, TOP),
        ((9, -1.5), 4, TOP),
        ((7, -3.0), 2, [*TOP[:2], (7, -3.0)]),
        ((8, -5.0), 4, [*TOP, (8, -5.0)]),
        ((8, -5.0), 0, [(8, -5.0)]),
        ((9, -1.5), 2, TOP[:3]),
        ((8, -3.0), 4, [*TOP, (8, -3.0)]),
        ((5, -3.0), 4, [*TOP[:3], (5, -3.0), (7, -3.0)]),
        ((5, -np.inf), 2, [*TOP[:2], (5, LOWEST_LOGPROB)]),
    ],
)
def test_a_token_stands_among_its_alternatives_where_it_belongs(
    token: tuple[int, float], count: int, expected: list[tuple[int, float]]
) -> None:
    assert entries(report([token], [TOP]), token[0], count) == expected


def test_filtered_alternatives_are_at_the_floor_and_ordered_by_id() -> None:
    top = [(4, 0.0), (3, -np.inf), (1, -np.inf)]
    assert entries(report([(4, 0.0)], [top]), 4, 3) == [(4, 0.0), (1, LOWEST_LOGPROB), (3, LOWEST_LOGPROB)]
    assert entries(report([(2, -np.inf)], [top]), 2, 3) == [
        (4, 0.0),
        (1, LOWEST_LOGPROB),
        (2, LOWEST_LOGPROB),
        (3, LOWEST_LOGPROB),
    ]


def test_a_sequence_has_its_own_rows_and_may_leave_the_last_of_them() -> None:
    tokens = [(1, -1.0), (2, -2.0), (3, -3.0)]
    reported = report(tokens, [[(token, value)] for token, value in tokens], offsets=[0, 0, 1, 3])
    assert [reported.count(sequence) for sequence in range(3)] == [0, 1, 2]
    assert reported.take(0, [], 1) == []
    assert reported.take(1, [1], 1) == [{1: -1.0}]
    assert reported.take(2, [2], 1) == [{2: -2.0}]
    assert reported.take(2, [2, 3], 1) == [{2: -2.0}, {3: -3.0}]


@pytest.mark.parametrize("tokens", [[2], [1, 2]])
def test_log_probabilities_of_other_tokens_are_a_defect_of_the_engine(tokens: list[int]) -> None:
    with pytest.raises(InvariantError, match="log-probabilities are those of tokens"):
        report([(1, -1.0)], [[(1, -1.0)]]).take(0, tokens, 1)


def test_what_is_not_known_of_a_draw_is_none() -> None:
    rows = RowDraws(
        offsets=np.array([0, 1, 3]),
        sum_smaller_probs=np.array([0.5, 0.25, 1.0], np.float32),
        draft_logprobs=np.array([np.nan, -0.5, np.nan], np.float32),
        accept_probs=np.array([np.nan, 1.0, 0.0], np.float32),
    )
    draws = DrawReport(rows)
    assert draws.take(0, 1) == [TokenDraw(0.5, None, None)]
    assert draws.take(1, 2) == [TokenDraw(0.25, -0.5, 1.0), TokenDraw(1.0, None, 0.0)]
    assert draws.take(1, 0) == []
    with pytest.raises(InvariantError, match="1 draws were reported for 2 tokens"):
        draws.take(0, 2)
