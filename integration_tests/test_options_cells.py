"""Every cell of the table in docs/concepts/sampling.md: an option, served in some way, is what it is served plainly."""

from __future__ import annotations

from typing import Literal

import pytest

from options_testing import rejection
from options_testing.cells import OPTIONS, cells, check_cell, check_visible, num_old_slots, serve_in_old_slots
from options_testing.draws import drafted_draws, run_with_draws


@pytest.mark.parametrize("row", OPTIONS)
def test_an_option_changes_what_is_said_as_it_promises(row: str) -> None:
    check_visible(row)


def test_rejection_draws_other_tokens_than_coupled_draws_are() -> None:
    rejection.check_visible()


@pytest.mark.parametrize(("row", "mode"), cells())
def test_a_cell_holds(row: str, mode: str) -> None:
    check_cell(row, mode)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_tokens_are_counted_afresh_in_a_slot_that_a_sequence_had_before(penalty: str) -> None:
    run, different = serve_in_old_slots(penalty)
    assert num_old_slots(run) > 0
    assert different == {}


def test_draws_under_rejection_tell_how_likely_drafts_were_proposed_and_accepted() -> None:
    run = run_with_draws("rejection")
    num_accepted = 0
    for draw, proposed, held in drafted_draws(run, is_greedy=False):
        num_accepted += draw.draft_logprob is not None
        assert draw.draft_logprob in (None, pytest.approx(proposed, abs=1e-4))
        assert draw.accept_prob in (None, pytest.approx(held, abs=1e-4))
    assert num_accepted > 30


@pytest.mark.parametrize(("rule", "is_greedy"), [("rejection", True), ("coupled", True), ("coupled", False)])
def test_draws_of_drafts_that_are_judged_by_equality_are_certain(
    rule: Literal["rejection", "coupled"], is_greedy: bool
) -> None:
    draws = [draw for draw, _, _ in drafted_draws(run_with_draws(rule), is_greedy=is_greedy)]
    found = {(draw.draft_logprob, draw.accept_prob) for draw in draws}
    assert found == {(0.0, 1.0), (None, 0.0), (None, None)}
