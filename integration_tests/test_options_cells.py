"""Every cell of the table in docs/concepts/sampling.md: an option, served in some way, is what it is served plainly."""

from __future__ import annotations

import pytest

from options_testing import rejection
from options_testing.cells import OPTIONS, cells, check_cell, check_visible


@pytest.mark.parametrize("row", OPTIONS)
def test_an_option_changes_what_is_said_as_it_promises(row: str) -> None:
    check_visible(row)


def test_rejection_draws_other_tokens_than_coupled_draws_are() -> None:
    rejection.check_visible()


@pytest.mark.parametrize(("row", "mode"), cells())
def test_a_cell_holds(row: str, mode: str) -> None:
    check_cell(row, mode)
