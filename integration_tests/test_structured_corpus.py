"""Every constraint of the corpus, served: what ends is valid by independent judges, what is cut was allowed so far."""

from __future__ import annotations

from collections import Counter

import pytest

from structured_testing.cases import CORPUS
from structured_testing.corpus_runs import WAYS, check_tables, check_tiny
from thalweg.structured.lint import check


def test_it_has_sixty_schemas_twenty_expressions_and_ten_grammars_and_no_constraint_is_refused() -> None:
    assert Counter(case.spec.kind for case in CORPUS) == {"json": 60, "regex": 20, "ebnf": 10}
    warned = {case.name for case in CORPUS if check(case.spec)}
    assert {"json string: unknown format", "json string: pattern with choices"} <= warned


@pytest.mark.parametrize("way", WAYS)
def test_over_tables_in_every_way(way: str) -> None:
    assert check_tables(CORPUS[3::10], WAYS[way]) > 0.9


def test_by_the_trained_model_without_and_with_drafts() -> None:
    assert check_tiny(CORPUS[4::15], WAYS["overlapping with drafts"], "float32", max_tokens=28) > 0.5
