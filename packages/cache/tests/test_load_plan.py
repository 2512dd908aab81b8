"""Load plans: recorded operations, every stretch in order, and bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.cache import LoadPlanBuilder
from thalweg.interfaces import ConfigError

RECORDED = json.loads((Path(__file__).parent / "golden/cache/block_load_plan.json").read_text())


def run(builder: LoadPlanBuilder, operations: list[list[Any]]) -> None:
    methods = {"zero": builder.zero_fill, "paged": builder.paged, "ring": builder.ring}
    for name, *arguments in operations:
        methods[name](*arguments)


@pytest.mark.parametrize("case", range(len(RECORDED)))
def test_operations_give_the_recorded_segments(case: int) -> None:
    builder = LoadPlanBuilder(RECORDED[case]["block_size"])
    run(builder, RECORDED[case]["ops"])
    plan = builder.build()
    assert plan.segments.tolist() == RECORDED[case]["segments"]
    assert plan.num_rows == builder.num_rows == RECORDED[case]["total_k"]
    assert plan.segments.dtype == np.int32
    assert plan.segments.flags.c_contiguous


def test_an_empty_plan_has_no_rows() -> None:
    plan = LoadPlanBuilder(4).build()
    assert plan.segments.shape == (0, 4)
    assert plan.num_rows == 0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_segments_name_every_asked_row_once_and_in_order(data: st.DataObject) -> None:
    unit = data.draw(st.integers(1, 9))
    builder = LoadPlanBuilder(unit)
    want: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 6))):
        kind = data.draw(st.sampled_from(("zero", "paged", "ring")))
        if kind == "zero":
            count = data.draw(st.integers(0, 25))
            builder.zero_fill(count)
            want += [(-1, -1)] * count
            continue
        table = data.draw(st.permutations(range(1, 8)))
        begin = data.draw(st.integers(0, 7 * unit))
        end = data.draw(st.integers(begin, 7 * unit))
        if kind == "paged":
            builder.paged(table, begin, end)
            want += [(table[entry // unit], entry % unit) for entry in range(begin, end)]
        else:
            builder.ring(table[0], begin, end)
            want += [(table[0], position % unit) for position in range(begin, end)]
    plan = builder.build()
    got: list[tuple[int, int]] = []
    for source, begin, end, destination in plan.segments.tolist():
        assert destination == len(got)
        assert 0 <= begin < end <= unit
        got += [(source, entry if source >= 0 else -1) for entry in range(begin, end)]
    assert got == want
    assert plan.num_rows == len(want)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LoadPlanBuilder(0), "unit is 0"),
        (lambda: LoadPlanBuilder(4).zero_fill(-1), "count is -1"),
        (lambda: LoadPlanBuilder(4).paged([1, 2], 0, 9), r"the 2 blocks hold \[0, 8\)"),
        (lambda: LoadPlanBuilder(4).paged([1, 2], -1, 2), r"entries \[-1, 2\)"),
        (lambda: LoadPlanBuilder(4).paged([1, 2], 3, 2), r"entries \[3, 2\)"),
        (lambda: LoadPlanBuilder(4).ring(1, -1, 2), r"positions \[-1, 2\)"),
        (lambda: LoadPlanBuilder(4).ring(1, 3, 2), r"positions \[3, 2\)"),
    ],
)
def test_a_stretch_out_of_bounds_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
