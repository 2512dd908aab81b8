"""What acceptance and verify lengths should be, by the plainest way to compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from rollback_testing.serving import Served


def trials(served: Served, agreement: torch.Tensor) -> Iterator[tuple[bool, float]]:
    """(it held, its chance) of every draft that was looked at: those up to the first that did not hold.

    Of a run that verified all drafts. agreement: [V] sum of min(p, d) after each token.
    """
    for (sequence, position), (anchor, drafts, _) in served.proposals.items():
        later = [at for row, at in served.proposals if row == sequence and at > position]
        if not later:
            continue
        accepted = min(later) - position - 1
        before = (anchor, *drafts)
        for place in range(min(accepted + 1, len(drafts))):
            yield place < accepted, float(agreement[before[place]])


def best_lengths(confidences: Sequence[Sequence[float]], curve: Sequence[tuple[int, float]]) -> list[int]:
    """Verify lengths of the best throughput: every total is tried, the likeliest drafts come first."""
    drafts = []
    for row, sure in enumerate(confidences):
        survival = 1.0
        for one in sure:
            survival *= one
            drafts.append((survival, row))
    drafts.sort(key=lambda draft: (-draft[0], draft[1]))
    totals = range(len(confidences), len(confidences) + len(drafts) + 1)
    best = max(totals, key=lambda total: throughput(confidences, total, curve))
    return [1 + sum(row == other for _, other in drafts[: best - len(confidences)]) for row in range(len(confidences))]


def throughput(confidences: Sequence[Sequence[float]], num_rows: int, curve: Sequence[tuple[int, float]]) -> float:
    """Expected tokens per millisecond of a step of so many rows."""
    survival = [torch.tensor(sure).cumprod(0) for sure in confidences]
    likeliest = torch.cat(survival).sort(descending=True).values[: num_rows - len(confidences)]
    return (len(confidences) + float(likeliest.sum())) / next(ms for size, ms in curve if size >= num_rows)
