"""Sampling ops on a GPU at the vocabulary of the release: microseconds against the bytes that must move.

The floor of draws, and of log-probabilities, is one read of the logits plus one write of the processed
log-probabilities, at the rate of a large copy; that of other ops what they read and write. Every call has rows of its
own, which are cold; times are those of a graph of several calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from cuda_timing import copy_rate, device_line, graph_time_us, require_gpu
from report import Row, arguments, publish
from torch import Tensor

from thalweg.kernels import bind

VOCABULARY = 129_280
FILTERS = {
    "none": (1.0, -1, 0.0),
    "top-p 0.9": (0.9, -1, 0.0),
    "top-k 50": (1.0, 50, 0.0),
    "min-p 0.05": (1.0, -1, 0.05),
    "all three": (0.9, 50, 0.05),
}
SPREADS = {"peaked": 3.0, "flat": 1.0}
"""Standard deviation of normal logits: top-p 0.9 keeps 4 % or 61 % of the vocabulary."""
HIDDEN = 0.99
"""Share of tokens that a grammar forbids."""
COLD_BYTES = 250_000_000

ops = bind("sm90")


@dataclass(frozen=True)
class Case:
    """One op on rows of one kind."""

    op: str
    rows: str
    make: Callable[[Tensor], Callable[[], object]]
    """A call for logits [n, V]."""
    moved: float
    """Bytes, in multiples of those of the logits."""
    spread: float = 1.0
    hidden: float = 0.0

    def measured(self, num_rows: int, bytes_per_us: float) -> Row:
        row_bytes = 4 * VOCABULARY
        calls = [
            self.make(self._logits(num_rows, turn)) for turn in range(max(2, -(-COLD_BYTES // (num_rows * row_bytes))))
        ]
        time_us, floor_us = graph_time_us(calls), self.moved * num_rows * row_bytes / bytes_per_us
        return {
            "op": self.op,
            "rows": num_rows,
            "case": self.rows,
            "us": time_us,
            "floor us": floor_us,
            "% of floor": 100 * floor_us / time_us,
        }

    def _logits(self, num_rows: int, seed: int) -> Tensor:
        generator = torch.Generator("cuda").manual_seed(seed)
        logits = self.spread * torch.randn(num_rows, VOCABULARY, device="cuda", generator=generator)
        if self.hidden > 0:
            logits[torch.rand(logits.shape, device="cuda", generator=generator) < self.hidden] = -torch.inf
        return logits


def filtered(num_rows: int) -> Iterator[Case]:
    """Draws and log-probabilities, by filter and by what the logits are like."""
    streams = torch.arange(num_rows, device="cuda"), torch.arange(num_rows, device="cuda")
    ones = torch.ones(num_rows, device="cuda")
    kinds = [(name, spread, 0.0) for name, spread in SPREADS.items()] + [("grammar", 3.0, HIDDEN)]
    for kind, spread, hidden in kinds:
        for label, (top_p, top_k, min_p) in FILTERS.items():
            top_ks = torch.full((num_rows,), top_k, dtype=torch.int32, device="cuda")
            given = ones, top_p * ones, top_ks, min_p * ones
            calls: list[tuple[str, tuple[Tensor, ...]]] = [
                ("filtered_logprobs", given),
                ("sample_tokens", (*given, *streams)),
            ]
            if label in ("none", "top-p 0.9"):
                calls.append(("coupled_tokens", (*given, *streams)))
            for op, parameters in calls:
                yield Case(op, f"{kind}, {label}", partial(_call, op, parameters), 2, spread, hidden)


def plain(num_rows: int) -> Iterator[Case]:
    """What has no filters."""
    streams = torch.arange(num_rows, device="cuda"), torch.arange(num_rows, device="cuda")
    halves = torch.full((num_rows,), 0.5, dtype=torch.float64, device="cuda")
    yield Case("argmax_lowest", "flat", lambda x: partial(ops.argmax_lowest, x), 1)
    yield Case("log_softmax", "flat", lambda x: partial(ops.log_softmax, x), 2)
    yield Case("top_logprobs, 20", "flat", lambda x: partial(ops.top_logprobs, x, 20), 1)
    yield Case("draw", "flat", lambda x: partial(ops.draw, x.exp(), halves), 1)
    yield Case("sum_smaller_probs", "flat", lambda x: partial(ops.sum_smaller_probs, x, streams[0]), 1)
    drafts = torch.log_softmax(torch.randn(num_rows, VOCABULARY, device="cuda"), -1)
    has_draft = torch.ones(num_rows, dtype=torch.bool, device="cuda")
    judged = streams[0].int(), has_draft, drafts, streams[0], *streams
    yield Case("judge_drafts", "flat", lambda x: partial(ops.judge_drafts, torch.log_softmax(x, -1), *judged), 2)
    counts = torch.zeros(num_rows + 1, VOCABULARY, dtype=torch.int32, device="cuda")
    marks = torch.rand(num_rows + 1, VOCABULARY, device="cuda") < 0.015
    ones, ids = torch.ones(num_rows, device="cuda"), torch.full((num_rows, 5), -1, device="cuda")
    changes = counts, marks, streams[0] + 1, ids, ones, ones, ones
    yield Case("apply_penalties", "1.5 % seen", lambda x: partial(ops.apply_penalties, x, *changes), 1.5)


def _call(op: str, parameters: tuple[Tensor, ...], logits: Tensor) -> Callable[[], object]:
    return partial(getattr(ops, op), logits, *parameters)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    require_gpu()
    print(device_line())
    rate = copy_rate(500)
    sizes = (64,) if options.smoke else (64, 256)
    publish(
        [case.measured(n, rate) for n in sizes for cases in (filtered, plain) for case in cases(n)],
        options.json,
    )


if __name__ == "__main__":
    main()
