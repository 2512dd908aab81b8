"""Every constraint of the corpus, served: what ends is valid by independent judges, what is cut was allowed so far."""

from __future__ import annotations

import pytest

from structured_testing.cases import CORPUS
from structured_testing.corpus_runs import WAYS, check_tables, check_tiny


@pytest.mark.parametrize("way", WAYS)
def test_over_tables_in_every_way(way: str) -> None:
    assert check_tables(CORPUS[3::10], WAYS[way]) > 0.9


@pytest.mark.parametrize("way", ["in place with drafts", "overlapping"])
def test_by_the_trained_model(way: str) -> None:
    assert check_tiny(CORPUS[12::15], WAYS[way], "float32") >= 0.8
