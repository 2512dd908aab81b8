"""A plan for many layers is cut to those that gain most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thalweg.eplb import Placement, limit_layers, moved_slots
from thalweg.interfaces import ConfigError

# Four experts on two ranks: 0 and 1 are busy, and share a rank before and not after. Layer 3 stays.
BEFORE = Placement.from_slots(np.array([[0, 1, 2, 3]] * 4, np.int32), 2, 4)
AFTER = Placement.from_slots(np.array([[0, 2, 1, 3]] * 3 + [[0, 1, 2, 3]], np.int32), 2, 4)
HISTORY = np.array([[[10, 10, 1, 1], [50, 50, 1, 1], [20, 20, 1, 1], [90, 90, 1, 1]]])


def test_the_layers_that_gain_most_come_first() -> None:
    for most, changed in ((1, [1]), (2, [1, 2]), (3, [0, 1, 2]), (9, [0, 1, 2])):
        limited = limit_layers(BEFORE, AFTER, HISTORY, most)
        assert np.flatnonzero(moved_slots(BEFORE, limited)).tolist() == changed
        assert limited.equals(BEFORE.with_layers(AFTER, np.isin(np.arange(4), changed)))


def test_what_was_left_comes_next() -> None:
    placement, rounds = BEFORE, 0
    while not placement.equals(AFTER):
        placement = limit_layers(placement, AFTER, HISTORY, 2)
        rounds += 1
    assert rounds == 2


@pytest.mark.parametrize("most", [0, -1, True, 1.5])
def test_a_limit_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(ConfigError, match=r"most is .*; it must be an integer of at least 1"):
        limit_layers(BEFORE, AFTER, HISTORY, most)


def test_placements_must_fit() -> None:
    with pytest.raises(ConfigError, match="num_slots of one placement is 4 and of the other 6"):
        limit_layers(BEFORE, Placement.initial(4, 4, 6, 2), HISTORY, 1)
