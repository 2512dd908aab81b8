"""Tables that follow a script: after a token comes the one that the script says, allowed or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from drafts_testing.tables import Tables
from structured_testing.letters import VOCAB, id_of

WANTED = 20.0


def scripted(follows: Mapping[str, Sequence[str]], *, otherwise: Sequence[str]) -> Tables:
    """Tables of one token's memory.

    follows: the text of a token -> those that may follow, best first. otherwise: the same for all other tokens. What
    is named nowhere is unlikely, more so the higher its id.
    """
    logits = torch.zeros(VOCAB, VOCAB) - torch.arange(VOCAB) / VOCAB
    for token in range(VOCAB):
        _prefer(logits[token], otherwise)
    for text, wanted in follows.items():
        logits[id_of(text)] = -torch.arange(VOCAB) / VOCAB
        _prefer(logits[id_of(text)], wanted)
    return Tables(logits)


def _prefer(logits: torch.Tensor, texts: Sequence[str]) -> None:
    for place, text in enumerate(texts):
        logits[id_of(text)] = WANTED - place
