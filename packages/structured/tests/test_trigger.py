"""A trigger is found wherever it ends, and forced from the bound token on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.structured.trigger import Trigger, TriggerWatch

TOKENS = st.lists(st.integers(0, 2), max_size=30)
SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def watch(trigger: Sequence[int], bound: int | None = None, max_rollback: int = 100) -> TriggerWatch:
    return TriggerWatch(Trigger(trigger, bound), max_rollback)


@given(SEQUENCES, TOKENS)
def test_progress_is_the_longest_beginning_of_the_trigger_that_the_text_ends_with(
    trigger: list[int], tokens: list[int]
) -> None:
    watched = watch(trigger)
    for end, token_id in enumerate(tokens, 1):
        assert watched.accept(token_id)
        text = tokens[:end]
        assert watched.progress == max(
            n for n in range(len(trigger) + 1) if n <= end and text[end - n :] == trigger[:n]
        )
        if not watched.is_pending:
            assert text[-len(trigger) :] == trigger
            break


@given(SEQUENCES, TOKENS)
def test_after_the_bound_token_only_the_rest_of_the_trigger_passes(trigger: list[int], tokens: list[int]) -> None:
    watched = watch(trigger, bound=9)
    for token_id in tokens:
        if watched.is_pending:
            watched.accept(token_id)
    if not watched.is_pending:
        return
    assert watched.accept(9)
    assert watched.progress == 0
    for number, token_id in enumerate(trigger, 1):
        assert watched.forced_token_id == token_id
        assert not watched.accept(token_id + 1)
        assert watched.accept(token_id)
        assert watched.tokens_after_bound == number
    assert not watched.is_pending
    assert watched.forced_token_id is None


def test_the_token_that_completes_the_trigger_can_be_the_bound_token() -> None:
    watched = watch([1, 2], bound=2)
    assert watched.accept(1)
    assert watched.accept(2)
    assert not watched.is_pending
    assert watched.tokens_after_bound == 0


def test_a_bound_token_inside_the_trigger_keeps_the_progress() -> None:
    watched = watch([1, 2, 3], bound=2)
    assert watched.accept(1)
    assert watched.accept(2)
    assert (watched.progress, watched.forced_token_id) == (2, 3)


@given(SEQUENCES, TOKENS, st.data())
def test_taking_tokens_back_restores_every_earlier_state(
    trigger: list[int], tokens: list[int], data: st.DataObject
) -> None:
    watched = watch(trigger, bound=0)
    states = [(watched.progress, watched.tokens_after_bound)]
    for token_id in tokens:
        if not watched.is_pending:
            watched.count()
        elif not watched.accept(token_id):
            continue
        states.append((watched.progress, watched.tokens_after_bound))
    num_tokens = data.draw(st.integers(0, len(states) - 1))
    watched.rollback(num_tokens)
    assert (watched.progress, watched.tokens_after_bound) == states[len(states) - 1 - num_tokens]
    assert watched.num_kept == len(states) - 1 - num_tokens


def test_only_the_last_tokens_are_kept() -> None:
    watched = watch([5], max_rollback=3)
    for token_id in range(5):
        watched.accept(token_id)
    assert watched.num_kept == 3


@pytest.mark.parametrize("trigger", [[1] * 200, [1, 2] * 100])
def test_a_long_periodic_trigger_is_found_after_a_false_start(trigger: list[int]) -> None:
    watched = watch(trigger)
    for token_id in [*trigger[:-1], 0, *trigger]:
        assert watched.is_pending
        watched.accept(token_id)
    assert not watched.is_pending
