"""The model's log-probabilities of whole texts, computed anew without engine, cache, chunks or drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from logprobs_testing.plain import entry
from thalweg.model import Model

TOLERANCE = 1e-5


def text_logits(model: Model, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """float32 [L, V] of each text: row i is what the model says after its first i + 1 tokens."""
    with torch.inference_mode():
        return model.forward_sequences([torch.tensor(text, dtype=torch.int64) for text in texts])


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
        assert mine[token] == pytest.approx(expected[token], abs=tolerance), where
        assert len(mine) == len(expected), where
        for candidate, value in mine.items():
            assert value == pytest.approx(max(float(row[candidate]), -9999.0), abs=tolerance), (where, candidate)
        assert list(mine.values()) == pytest.approx(list(expected.values()), abs=tolerance), where
        order = sorted(mine.items(), key=lambda item: (-item[1], item[0]))
        assert list(mine.items()) == order, where
