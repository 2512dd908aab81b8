"""The table of options in docs/concepts/sampling.md is complete, and says what the tests of its cells test."""

from __future__ import annotations

from dataclasses import fields

import pytest

from options_testing.cells import cells
from options_testing.document import HEADING, documented, read_table
from options_testing.modes import MODES
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.interfaces import SamplingParams

OTHER_OPTIONS = {"logprobs_mode", "verification", "batch_invariant"}
"""Options of other sections of the engine that concern sampling."""


def test_every_field_of_sampling_params_and_every_option_of_the_engine_has_a_row() -> None:
    asked = {field.name for kind in (SamplingParams, SamplingConfig) for field in fields(kind)}
    assert documented().names == asked | OTHER_OPTIONS


def test_every_row_has_a_cell_for_every_mode() -> None:
    statuses = documented().statuses
    assert set(statuses) == {(row, mode) for row, _ in statuses for mode in MODES}


def test_every_cell_has_a_test_that_tests_what_the_cell_says() -> None:
    assert documented().statuses == cells()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("## Something else\n", "no heading"),
        (f"{HEADING}\n| option | drafts |\n|---|---|\n| `n` | perhaps |\n", "says 'perhaps'"),
        (f"{HEADING}\n| option | drafts |\n|---|---|\n| `n` | works |\n| `n` | works |\n", "once"),
        (f"{HEADING}\n| option | drafts | async |\n|---|---|---|\n| `n` | works |\n", "shorter"),
    ],
)
def test_a_table_that_leaves_something_open_is_no_table(page: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(page)
