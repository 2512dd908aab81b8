"""Draft blocks against texts that the target wrote itself: what is accepted, and what a chain of steps makes of it.

Speculative decoding emits the target's own text, so the text comes first and drafts are judged by it. Greedy, a draft
holds when it is the text's token. At temperature 1 a draft d of distribution D is accepted with chance
min(1, P(d) / D(d)), and what is emitted has the distribution P. Of a token x that is known to have been emitted it
follows that it was an accepted draft with chance min(1, D(x) / P(x)); a draft that was rejected has the distribution
(D - P)+. A draft depends on accepted text alone, so the steps of a chain are among the blocks at all positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tools.train.drafter.blocks import Texts, block_rows
from tools.train.drafter.library import Shelf
from torch import Tensor

from thalweg.model import DraftNetwork, Model

BLOCKS_PER_PASS = {"cpu": 512, "cuda": 4096}


@dataclass(frozen=True, slots=True)
class Judged:
    """Blocks at many anchors, on the host; N anchors, G places."""

    num_accepted: Tensor
    """int64 [N] drafts accepted, those before the first that was not."""
    confidences: Tensor
    """float32 [N, G] of the drafts as they were drawn."""
    overlap: Tensor
    """float32 [N, G]: 1 - TV of draft and target behind the text's own tokens."""
    sureness: Tensor
    """float32 [N, G]: confidences behind the text's own tokens."""


def judge(
    network: DraftNetwork, model: Model, texts: Texts, anchors: Tensor, generator: torch.Generator, *, greedy: bool
) -> Judged:
    """Draft at anchors int64 [N], each with G more rows of its text behind it: the likeliest tokens, or drawn ones."""
    size = network.config.dspark_block_size
    rows = block_rows(network, texts, anchors)
    following = texts.following(anchors, size + 1)
    text = texts.token_ids[following]
    base = network.base_logits(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
    target = model.logits(texts.hidden[following[:, :-1].flatten()]).view(base.shape)
    drafted, is_held = text[:, 0], torch.ones_like(text[:, 0], dtype=torch.bool)
    columns = []
    for place in range(size):
        wanted = torch.softmax(target[:, place], -1)
        true_rows = network.markov_rows(text[:, place])
        true_draft = torch.softmax(network.biased(base[:, place], true_rows), -1)
        overlap = torch.minimum(true_draft, wanted).sum(-1)
        sureness = network.confidences(rows[:, place], true_rows, 1.0)
        drafted_rows = network.markov_rows(drafted)
        confidence = network.confidences(rows[:, place], drafted_rows, 1.0)
        draft = torch.softmax(network.biased(base[:, place], drafted_rows), -1)
        drafted, holds = _next(draft, wanted, text[:, place + 1], is_held, generator, greedy)
        is_held = is_held & holds
        columns.append((is_held, confidence, overlap, sureness))
    held, *figures = (torch.stack(column, 1).cpu() for column in zip(*columns, strict=True))
    return Judged(held.sum(1), *figures)


def _next(
    draft: Tensor, wanted: Tensor, emitted: Tensor, is_held: Tensor, generator: torch.Generator, greedy: bool
) -> tuple[Tensor, Tensor]:
    """The drafts int64 [N] of distributions [N, V], and whether they are the emitted tokens where all before were."""
    if greedy:
        drafted = draft.argmax(-1)
        return drafted, drafted == emitted
    draw = torch.rand(len(emitted), generator=generator, device=emitted.device)
    chance = draft.gather(1, emitted[:, None]) / wanted.gather(1, emitted[:, None])
    holds = draw < chance.squeeze(1)
    # Behind a draft that did not hold, drafting goes on as if it had: from the draft's own distribution.
    rejected = (draft - wanted).clamp(min=0) + 1e-20
    other = torch.multinomial(torch.where(is_held[:, None], rejected, draft), 1, generator=generator).squeeze(1)
    return torch.where(is_held & holds, emitted, other), holds


@torch.no_grad()
def judge_shelf(
    network: DraftNetwork, model: Model, shelf: Shelf, generator: torch.Generator, *, greedy: bool, stride: int = 1
) -> Judged:
    """Blocks at every `stride`-th possible anchor of texts that have equally many: anchors of the first text first."""
    first, length = int(shelf.first_anchors[0]), shelf.token_ids.shape[1]
    places = torch.arange(first, length - network.config.dspark_block_size, stride, device=shelf.token_ids.device)
    parts = [
        judge(network, model, shelf.texts(chosen), _anchors(chosen, places, length), generator, greedy=greedy)
        for chosen in _chosen(shelf, max(1, BLOCKS_PER_PASS[places.device.type] // len(places)))
    ]
    columns = ("num_accepted", "confidences", "overlap", "sureness")
    return Judged(*(torch.cat([getattr(part, column) for part in parts]) for column in columns))


def _chosen(shelf: Shelf, count: int) -> Iterator[Tensor]:
    yield from torch.split(torch.arange(len(shelf.token_ids), device=shelf.token_ids.device), count)


def _anchors(chosen: Tensor, places: Tensor, length: int) -> Tensor:
    begins = torch.arange(len(chosen), device=places.device) * length
    return (begins[:, None] + places).flatten()


def walk(num_accepted: Tensor) -> tuple[list[Tensor], Tensor]:
    """Steps of a chain over texts int64 [n, A] of accepted drafts at each of A anchors in a row.

    The first step is at the first anchor, and each goes on behind what the one before emitted, until the anchors end.
    Returns the anchors of every text's steps, and float64 [n] tokens that a step emits on average.
    """
    steps, rates = [], []
    for row in num_accepted.tolist():
        place, visited = 0, []
        while place < len(row):
            visited.append(place)
            place += row[place] + 1
        steps.append(torch.tensor(visited))
        rates.append(place / len(visited))
    return steps, torch.tensor(rates, dtype=torch.float64)
