"""Sequences computed token by token: what any other way of computing them must reproduce, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rollback_testing.bench import Bench, Memory, Proposal
from rollback_testing.plans import DecodeRow, Ids, Lane


@dataclass
class History:
    """What there was to see of one sequence, up to the last but one token of its text."""

    text: Ids
    memory: dict[int, Memory] = field(default_factory=dict)
    """The bytes with so many tokens in the cache."""
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    """float32 [V] by position."""
    proposals: dict[int, Proposal] = field(default_factory=dict)
    """The drafts with so many tokens in the cache, if there is a drafter."""


def record_histories(bench: Bench, texts: Sequence[Ids], prefilled: int = 1) -> list[History]:
    """Prefill the first tokens of every text, then decode the others one by one, all texts in one step."""
    histories = [History(text) for text in texts]
    lanes = [bench.lane(text) for text in texts]
    for lane in lanes:
        bench.clear(lane)
    _keep(bench, histories, lanes, prefilled, bench.prefill([(lane, 0, prefilled) for lane in lanes]))
    _decode(bench, histories, lanes, prefilled)
    return histories


def branch_off(bench: Bench, history: History, cached: int, text: Ids) -> History:
    """What follows when a text goes on differently after so many tokens."""
    branch = History(text)
    lane = bench.lane(text, history.memory[cached], bench.readable.kept(cached))
    _decode(bench, [branch], [lane], cached)
    return branch


def _decode(bench: Bench, histories: list[History], lanes: list[Lane], first: int) -> None:
    nothing = np.zeros(bench.draft_length, np.int32)
    for cached in range(first, max(len(lane.text) for lane in lanes) - 1):
        going = [i for i, lane in enumerate(lanes) if cached < len(lane.text) - 1]
        logits = bench.decode([DecodeRow(lanes[i], cached, nothing, 0) for i in going])
        _keep(bench, [histories[i] for i in going], [lanes[i] for i in going], cached + 1, torch.cat(logits))
    for lane in lanes:
        bench.free(lane)


def _keep(bench: Bench, histories: list[History], lanes: list[Lane], cached: int, logits: torch.Tensor) -> None:
    for history, lane, row in zip(histories, lanes, logits, strict=True):
        history.logits[cached - 1] = row.clone()
        history.memory[cached] = bench.memory(lane)
    if bench.drafter is not None:
        proposals = bench.propose([(lane, cached) for lane in lanes])
        for history, proposal in zip(histories, proposals, strict=True):
            history.proposals[cached] = proposal
