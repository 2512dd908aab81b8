"""Many random schemas."""

from __future__ import annotations

import pytest
from lint_testing.outputs import check_schemas


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_whatever_a_schema_that_passes_admits_is_valid(seed: int) -> None:
    tally = check_schemas(seed, count=500)
    assert tally.num_compiled > 200
    assert tally.num_outputs > 1500
    assert len(tally.uncompiled) < 10, tally.uncompiled
