"""Who sends an expert that several ranks hold: the busiest sender has as little to do as can be."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.eplb.senders import Need, balance_senders, deal_senders


@st.composite
def needs_of_a_layer(draw: st.DrawFn) -> list[Need]:
    """A few experts on up to five ranks, each with one holder at least."""
    needs = []
    for _ in range(draw(st.integers(0, 5))):
        roles = draw(st.lists(st.sampled_from("hrn"), min_size=5, max_size=5).filter(lambda roles: "h" in roles))
        needs.append(Need(*([rank for rank in range(5) if roles[rank] == role] for role in "hr")))
    return needs


def most_sent(senders: list[list[int]]) -> int:
    return max(Counter(itertools.chain(*senders)).values(), default=0)


def fewest_at_best(needs: list[Need]) -> int:
    """What the busiest sender has to send if everybody chooses best: every choice tried."""
    choices = (itertools.product(need.holders, repeat=len(need.receivers)) for need in needs)
    return min(most_sent([list(chosen) for chosen in every]) for every in itertools.product(*choices))


@settings(max_examples=60, deadline=None)
@given(needs_of_a_layer().filter(lambda needs: sum(len(need.receivers) for need in needs) <= 7))
def test_the_rounds_are_as_few_as_any_choice_of_senders_allows(needs: list[Need]) -> None:
    senders = balance_senders(needs)
    assert [len(chosen) for chosen in senders] == [len(need.receivers) for need in needs]
    assert all(rank in need.holders for need, chosen in zip(needs, senders, strict=True) for rank in chosen)
    received = max(Counter(rank for need in needs for rank in need.receivers).values(), default=0)
    assert max(most_sent(senders), received) == max(fewest_at_best(needs), received)


def test_an_expert_is_handed_on_along_a_chain_until_a_rank_has_room() -> None:
    # Rank 1 takes the first one, which rank 2 could send; then four are left for ranks 0 and 1, two each at best.
    needs = [Need([1, 2], [9]), *(Need([0, 1], [receiver]) for receiver in range(5, 9))]
    assert balance_senders(needs)[0] == [2]
    assert most_sent(balance_senders(needs)) == 2


def test_holders_that_many_experts_share_do_not_all_use_the_first() -> None:
    needs = [Need([0, sender], [8]) for sender in range(1, 7)]
    assert most_sent(deal_senders(needs)) == 6
    received = Need([7], [9]), Need([7], [10])  # a rank that has two to send in any case
    assert most_sent(balance_senders([*needs, *received])) == 2
    assert deal_senders([Need([0, 1], [])]) == [[]]
