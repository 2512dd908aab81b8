"""The cells of verification by rejection: sampled text follows the law, and is equal where that is promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

from options_testing.cases import LONG, SETUP, requests
from options_testing.laws import law_in
from options_testing.modes import MODES, Mode, plain
from options_testing.runs import Run, differences

REJECTION = replace(SETUP, verification="rejection")
SAME_TEXT = ("async", "chunked")
"""Modes that change no sampled text, at one draft length."""
BY_LAW = {"drafts": "five", "variable length": "by plan", "preempted": "with drafts, overlapping"}
"""Modes that may change sampled text, and the way in which its law is tested."""


@cache
def served_plainly(verification: Literal["rejection", "coupled"], num_greedy: int) -> Run:
    return Run(plain(replace(SETUP, verification=verification)), requests(LONG, num_greedy))


def check_visible() -> None:
    """Rejection draws other tokens than coupled draws do, even without drafts."""
    one, other = served_plainly("rejection", 0), served_plainly("coupled", 0)
    assert len(differences(one.said, other.said)) == len(one.said)


def check_works(mode_name: str, ways: Mapping[str, Mode]) -> None:
    greedy = served_plainly("rejection", 6)
    for way, mode in ways.items():
        run = Run(mode.change(REJECTION), greedy.requests)
        assert differences(greedy.said, run.said) == {}, way
        assert mode.happened(run), f"{way}: the mode did not happen"
        if mode_name in SAME_TEXT:
            _check_same_text(mode)
    if mode_name in BY_LAW:
        mode = MODES[mode_name][BY_LAW[mode_name]]
        many, law = law_in(mode)
        assert law.p_value > 1e-3, str(law)
        assert mode.happened(many), "the mode did not happen to the many"


def _check_same_text(mode: Mode) -> None:
    """Overlap and chunks change nothing about steps with as many drafts."""
    changed = mode.change(REJECTION)
    in_place = replace(plain(REJECTION), draft_length=changed.draft_length)
    expected = Run(in_place, requests(LONG, 0))
    assert differences(expected.said, Run(changed, expected.requests).said) == {}
