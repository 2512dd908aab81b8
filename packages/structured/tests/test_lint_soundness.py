"""What lint lets through is enforced: outputs of random schemas are valid for an independent validator."""

from __future__ import annotations

from lint_testing.outputs import check_schemas


def test_whatever_a_schema_that_passes_admits_is_valid() -> None:
    tally = check_schemas(seed=1, count=250, num_outputs=4)
    assert tally.num_compiled > 80
    assert tally.num_refused > 60
    assert tally.num_outputs > 300
    assert len(tally.uncompiled) < 5, tally.uncompiled
