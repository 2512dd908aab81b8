"""Every cell of the table of options in every way of its mode; the short test takes the hardest one."""

from __future__ import annotations

import pytest

from options_testing.cells import cells, check_cell


@pytest.mark.parametrize(("row", "mode"), cells())
def test_a_cell_holds(row: str, mode: str) -> None:
    check_cell(row, mode, every_way=True)
