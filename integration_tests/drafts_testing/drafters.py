"""Drafters of every kind: right, nearly right, contrary, out of their vocabulary, too sure of themselves.

Letters: N sequences, G draft length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from drafts_testing.tables import Contexts, Tables, unit
from thalweg.interfaces import DraftRows, DraftSampler, TargetRows


@dataclass(frozen=True, slots=True)
class Place:
    """Where a draft is to be made: what a drafter may know by then."""

    place: int
    sequence_ids: NDArray[np.int64]
    """[N], on the host."""
    indices: torch.Tensor
    """int32 [N] absolute index of the draft."""
    states: torch.Tensor
    """int64 [N] everything before the draft."""
    newest: torch.Tensor
    """int32 [N] the token before the draft."""
    target: Tables
    drafts: Tables

    def hash(self, salt: int) -> torch.Tensor:
        """float64 [N] from 0 to 1, by text and place."""
        return unit(self.states * 31 + 7 * self.place + 1_000_003 * salt)


Choose = Callable[[Place, DraftSampler], torch.Tensor]
"""Ids int32 [N] of the drafts of a place."""
Confide = Callable[[Place], torch.Tensor]
"""Confidences [N]. They come before the draft, so they cannot depend on it; on all that is older they may."""


class TableDrafter:
    """Satisfies `thalweg.interfaces.Drafter` by a rule for ids and one for confidences."""

    def __init__(self, contexts: Contexts, drafts: Tables, draft_length: int, choose: Choose, confide: Confide) -> None:
        self._contexts = contexts
        self._drafts = drafts
        self._draft_length = draft_length
        self._choose = choose
        self._confide = confide

    @property
    def draft_length(self) -> int:
        return self._draft_length

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return ()

    def observe(self, rows: TargetRows) -> None:
        """It reads the contexts instead."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        newest = rows.anchor_token_ids
        states = self._contexts.with_newest(rows.state_slots, rows.positions, newest)
        drafts, confidences = [], []
        for place in range(self._draft_length):
            indices = rows.positions + 1 + place
            here = Place(place, rows.sequence_ids, indices, states, newest, self._contexts.tables, self._drafts)
            confidences.append(self._confide(here).float())
            drafts.append(self._choose(here, sampler).int())
            newest = drafts[-1].clamp(0, self._drafts.vocab_size - 1)
            states = self._drafts.advance(states, newest)
        return torch.stack(drafts, dim=1), torch.stack(confidences, dim=1)


class KnowingDrafter(TableDrafter):
    """Its confidences tell which drafts they belong to, which is wrong: it trusts the upper half of the vocabulary."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        draft_ids, confidences = super().propose(rows, sampler)
        return draft_ids, torch.where(draft_ids >= self._drafts.vocab_size // 2, confidences, 0.1)


def drawn(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """Drawn from the drafter's tables, as a real drafter does."""
    return sampler.sample(here.place, here.drafts.after(here.states))


def likeliest(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """The drafter's first choice, whatever the request's temperature."""
    return here.drafts.after(here.states).argmax(-1)


def half_right(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """The target's first choice, or another token, by a hash."""
    right = here.target.after(here.states).argmax(-1)
    return torch.where(here.hash(1) < 0.5, right, (right + 1) % here.target.vocab_size)


def least_likely(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """What the target wants least."""
    return here.target.after(here.states).argmin(-1)


def illegal_at_times(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """The first choice, but with ids that do not exist at half of the places."""
    token_ids = likeliest(here, sampler).int()
    nonsense = torch.tensor([-1, here.target.vocab_size, 2**31 - 1, -(2**31)], dtype=torch.int32)
    wrong = nonsense[(here.hash(2) * 4).long().clamp(max=3)]
    return torch.where(here.hash(3) < 0.5, wrong, token_ids)


def drawn_at_first(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """Drawn at the first place, certain at the others."""
    return drawn(here, sampler) if here.place == 0 else likeliest(here, sampler)


def overruled(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """Drawn, but at half of the places something else is returned: another id, by chance the same, none that exists."""
    return torch.where(here.hash(4) < 0.5, illegal_at_times(here, sampler), drawn(here, sampler))


def replaced(here: Place, sampler: DraftSampler) -> torch.Tensor:
    """Drawn, but the first choice is returned: often the same."""
    drawn(here, sampler)
    return likeliest(here, sampler)


def even(here: Place) -> torch.Tensor:
    """The same for all."""
    return torch.full(here.states.shape, 0.8)


def random(here: Place) -> torch.Tensor:
    """Anything from 0 to 1."""
    return here.hash(5)


def exact(here: Place) -> torch.Tensor:
    """The probability that the draft holds, at temperature 1 without filters."""
    target, drafts = here.target.after(here.states).softmax(-1), here.drafts.after(here.states).softmax(-1)
    return torch.minimum(target, drafts).sum(-1)


def telling(here: Place) -> torch.Tensor:
    """Even, but the third draft's says which token the second one is: as much as a confidence may tell of a round."""
    if here.place != 2:
        return even(here)
    return torch.where(here.newest >= here.target.vocab_size // 2, 0.95, 0.05)


def nonsense(here: Place) -> torch.Tensor:
    """Numbers that are no probabilities, and some that are."""
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.5, 1.5, 0.0, 1.0, 0.5])
    return values[(here.hash(6) * 8).long().clamp(max=7)]
