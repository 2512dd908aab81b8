"""The model's log-probabilities of whole texts, computed anew without engine, cache, chunks or drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch

from logprobs_testing.plain import FLOOR, entry
from thalweg.model import Model

TOLERANCE = 1e-5


@cache
def text_logits(model: Model, text: tuple[int, ...]) -> torch.Tensor:
    """float32 [L, V]: row i is what the model says after the first i + 1 tokens of the text."""
    with torch.inference_mode():
        return model.forward_sequences([torch.tensor(text, dtype=torch.int64)])[0]


def assert_reported(
    reported: Sequence[Mapping[int, float]] | None,
    token_ids: Sequence[int],
    logprobs: Sequence[torch.Tensor],
    num_alternatives: int,
    note: object,
    is_sharp: bool = False,
) -> None:
    """What is reported of tokens is what float64 [V] log-probabilities of each say, in order.

    Alternatives whose values are closer than the tolerance may change places. is_sharp: the temperature is 1e-5, and
    float32 logits times 1e5 are exact to a quarter.
    """
    tolerance = 0.25 if is_sharp else TOLERANCE
    assert reported is not None, note
    assert len(reported) == len(token_ids) == len(logprobs), note
    for place, (mine, token, row) in enumerate(zip(reported, token_ids, logprobs, strict=True)):
        expected = entry(row, token, num_alternatives)
        where = (note, place)
        assert token in mine, where
        assert len(mine) == len(expected), where
        assert list(mine.items()) == sorted(mine.items(), key=lambda item: (-item[1], item[0])), where
        found = torch.tensor([*mine.values()], dtype=torch.float64)
        of_the_same = row[list(mine)].clamp(min=FLOOR)
        of_the_best = torch.tensor([*expected.values()], dtype=torch.float64)
        assert (found - of_the_same).abs().max() <= tolerance, where
        assert (found - of_the_best).abs().max() <= tolerance, where
