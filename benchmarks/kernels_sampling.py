"""Sampling ops of the CPU on rows of a large vocabulary: sorting whole rows against selecting, and the floor.

The floor is the time to read the logits once, at the bandwidth that summing the same memory reaches. Times are of the
processor, one thread, best of several: other work on the machine does not count, though it takes its cache.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from report import Row, arguments, publish

from thalweg.kernels import bind
from thalweg.kernels.reference.filters import sorted_logprobs
from thalweg.kernels.reference.prefix import Filters
from thalweg.kernels.reference.vocabulary_rows import in_pieces

NUM_ROWS, VOCABULARY, REPEATS = 64, 129_280, 5
FILTERS = {
    "none": (1.0, -1, 0.0),
    "top-p 0.9": (0.9, -1, 0.0),
    "top-k 50": (1.0, 50, 0.0),
    "min-p 0.05": (1.0, -1, 0.05),
    "all three": (0.9, 50, 0.05),
}
SPREADS = {"peaked": 3.0, "flat": 1.0}
"""Standard deviation of normal logits: top-p 0.9 keeps 4 % or 61 % of the vocabulary."""

ops = bind("cpu")


def best_ms(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds of this thread."""
    work()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return 1000 * min(times)


def by_sorting(logits: torch.Tensor, filters: Filters, streams: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Tokens from log-probabilities of whole rows that are sorted as a whole, as a device computes them."""
    logprobs = in_pieces(
        lambda rows, *given: sorted_logprobs(rows, Filters(*given)),
        logits,
        filters.top_p,
        filters.top_k,
        filters.min_p,
    )
    tokens: torch.Tensor = ops.draw(torch.exp(logprobs), ops.uniform(*streams))
    return tokens


def measure_draws(spread: str, num_rows: int, vocabulary: int, repeats: int) -> list[Row]:
    """One row per set of filters."""
    logits = SPREADS[spread] * torch.randn(num_rows, vocabulary, generator=torch.Generator().manual_seed(0))
    ones, streams = torch.ones(num_rows), (torch.arange(num_rows), torch.arange(num_rows))
    floor = best_ms(logits.sum, repeats)
    rows: list[Row] = []
    for name, (top_p, top_k, min_p) in FILTERS.items():
        filters = Filters(top_p * ones, torch.full((num_rows,), top_k), min_p * ones)
        given = (logits, ones, filters.top_p, filters.top_k, filters.min_p)
        sorting: float | str = ""
        if name != "none":
            if not torch.equal(ops.sample_tokens(*given, *streams), by_sorting(logits, filters, streams)):
                raise SystemExit(f"{name}: the two ways draw different tokens")
            sorting = best_ms(functools.partial(by_sorting, logits, filters, streams), repeats)
        selecting = best_ms(functools.partial(ops.sample_tokens, *given, *streams), repeats)
        rows.append(
            {
                "logits": spread,
                "filters": name,
                "sort and draw, ms": sorting,
                "sample_tokens, ms": selecting,
                "sort / new": "" if isinstance(sorting, str) else sorting / selecting,
                "filtered_logprobs, ms": best_ms(functools.partial(ops.filtered_logprobs, *given), repeats),
                "coupled_tokens, ms": best_ms(functools.partial(ops.coupled_tokens, *given, *streams), repeats),
                "floor, ms": floor,
            }
        )
    return rows


def measure_others(num_rows: int, vocabulary: int, repeats: int) -> list[Row]:
    """Ops on the same logits that do not draw."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, vocabulary, generator=generator)
    counts = torch.zeros(num_rows + 1, vocabulary, dtype=torch.int32)
    in_prompt = torch.zeros(num_rows + 1, vocabulary, dtype=torch.bool)
    slots, text = torch.arange(num_rows) + 1, torch.randint(0, vocabulary, (num_rows, 2000), generator=generator)
    in_prompt[slots[:, None], text] = True
    ops.count_tokens(counts, slots, text[:, ::4])
    ones, step_ids = torch.ones(num_rows), torch.full((num_rows, 5), -1)
    works: dict[str, Callable[[], object]] = {
        "apply_penalties, 2,000 tokens seen": lambda: ops.apply_penalties(
            logits, counts, in_prompt, slots, step_ids, 1.1 * ones, 0 * ones, 0 * ones
        ),
        "log_softmax": lambda: ops.log_softmax(logits),
        "top_logprobs, 20": lambda: ops.top_logprobs(logits, 20),
        "argmax_lowest": lambda: ops.argmax_lowest(logits),
        "keep_largest, 50": lambda: ops.keep_largest(logits.clone(), 50),
    }
    floor = best_ms(logits.sum, repeats)
    return [{"op": name, "ms": best_ms(work, repeats), "floor, ms": floor} for name, work in works.items()]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    num_rows, vocabulary, repeats = (4, 5000, 1) if options.smoke else (NUM_ROWS, VOCABULARY, REPEATS)
    torch.set_num_threads(1)
    draws = [row for spread in SPREADS for row in measure_draws(spread, num_rows, vocabulary, repeats)]
    publish(draws, options.json)
    print()
    others = measure_others(num_rows, vocabulary, repeats)
    publish(others, options.json and options.json.with_stem(options.json.stem + "_others"))


if __name__ == "__main__":
    main()
