"""Routed experts on a GPU, at the dimensions of the release, against their floors.

The floor of a product is the larger of two times: that of its bytes (weights of the experts that have rows, rows and
results, each once) at the rate of a large copy, and that of its products at the rate of a large product of bfloat16.
Rows that tiles are filled up with do not count. The weights of one call are more than the L2 cache holds. Times are
those of a graph of several calls.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from cuda_timing import TENSOR_TFLOPS, against_floors, copy_rate, device_line, require_gpu
from report import Row, arguments, publish

from thalweg.kernels import ExpertPlan, ExpertWeights, Mxfp8Rows, bind

SIZES = {"gate and up": (4608, 5120, True), "down": (5120, 2304, False)}
"""Rows and columns of a weight, and whether it reads rows of tokens."""
EXPERTS, CHOSEN, HIDDEN = 384, 6, 5120
SOME = 48
"""Experts of the cases in which each has the same number of rows."""
ROWS_EACH = (2, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (1, 64, 256, 1024, 8192)


@dataclass(frozen=True)
class Case:
    """One size of one op."""

    name: str
    num_rows: int
    num_bytes: int
    flops: int
    call: Callable[[], object]
    width: int = 0
    padded_rows: int = 0

    def measured(self, bytes_per_us: float) -> Row:
        """A row of the table."""
        named: Row = {"case": self.name, "rows": self.num_rows, "tile": self.width, "filled up": self.padded_rows}
        return {**named, **against_floors([self.call] * 4, self.num_bytes, self.flops, bytes_per_us)}


def random_weights(num_experts: int, size: str) -> ExpertWeights:
    out, width, _ = SIZES[size]
    weights = ExpertWeights.empty(num_experts, out, width, "cuda")
    weights.tiles.random_(0, 256)
    weights.tiles[..., 4096:].random_(116, 123)
    return weights


def evenly(rows_each: int) -> torch.Tensor:
    """Ids [T, 1] that give each of SOME experts as many rows."""
    ids = torch.arange(SOME, device="cuda").repeat(rows_each)
    return ids[torch.randperm(ids.shape[0], device="cuda")].view(-1, 1)


def at_random(num_tokens: int) -> torch.Tensor:
    """Ids [T, 6] of EXPERTS."""
    return torch.rand(num_tokens, EXPERTS, device="cuda").topk(CHOSEN).indices


def multiplied(rows: int, width: int) -> int:
    """Rows that the products of a tile with so many are made for."""
    widths = (8, 16) if width <= 16 else (width // 2, width * 3 // 4, width)
    return next(each for each in widths if each >= rows)


def product_case(name: str, size: str, weights: ExpertWeights, plan: ExpertPlan) -> Case:
    out, width, gather = SIZES[size]
    num_rows = plan.tokens.shape[0]
    inputs = plan.positions.shape[0] if gather else num_rows
    codes = torch.randn(inputs, width, device="cuda").clamp(-4, 4).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = torch.randint(118, 124, (inputs, width // 32), dtype=torch.uint8, device="cuda")
    x = Mxfp8Rows(codes, scales)
    tiles = plan.tiles[: int(plan.num_tiles)]
    touched = int(tiles[:, 0].unique().numel())
    num_bytes = touched * weights.tiles[0].nbytes + codes.nbytes + scales.nbytes + 2 * num_rows * out
    call = functools.partial(bind("sm90").expert_linear, x, weights, plan, gather=gather)
    padded = sum(multiplied(rows, plan.width) for rows in tiles[:, 2].tolist()) - num_rows
    label = f"{size}, {name}, {touched} experts"
    return Case(label, num_rows, num_bytes, 2 * num_rows * out * width, call, plan.width, padded)


def even_cases(size: str, rows_each: tuple[int, ...]) -> Iterator[Case]:
    weights = random_weights(SOME, size)
    for rows in rows_each:
        ids = evenly(rows)
        plan = bind("sm90").plan_experts(ids, torch.ones(ids.shape, device="cuda"), SOME)
        yield product_case(f"{rows} rows each", size, weights, plan)


def random_cases(size: str, tokens: tuple[int, ...]) -> Iterator[Case]:
    weights = random_weights(EXPERTS, size)
    for num_tokens in tokens:
        ids = at_random(num_tokens)
        plan = bind("sm90").plan_experts(ids, torch.ones(ids.shape, device="cuda"), EXPERTS)
        yield product_case(f"{num_tokens} tokens", size, weights, plan)


def other_cases(tokens: tuple[int, ...]) -> Iterator[Case]:
    ops = bind("sm90")
    for num_tokens in tokens:
        ids, weights = at_random(num_tokens), torch.rand(num_tokens, CHOSEN, device="cuda")
        call = functools.partial(ops.plan_experts, ids, weights, EXPERTS)
        yield Case("plan", num_tokens, 24 * ids.numel(), 0, call)
        plan = ops.plan_experts(ids, weights, EXPERTS)
        outputs = torch.randn(ids.numel(), HIDDEN, device="cuda").bfloat16()
        shared = torch.randn(num_tokens, HIDDEN, device="cuda").bfloat16()
        num_bytes = outputs.nbytes + 2 * shared.nbytes
        yield Case("sum", num_tokens, num_bytes, 0, functools.partial(ops.combine_experts, outputs, shared, plan))


def main() -> None:
    options = arguments("Routed experts on a GPU against their floors.").parse_args()
    require_gpu()
    rate = copy_rate()
    print(f"{device_line()}, copies {rate / 1e6:.2f} TB/s, products {TENSOR_TFLOPS:.0f} TFLOP/s")
    rows_each, tokens = (ROWS_EACH[:1], TOKENS[:2]) if options.smoke else (ROWS_EACH, TOKENS)
    groups = itertools.chain(
        (functools.partial(even_cases, size, rows_each) for size in SIZES),
        () if options.smoke else (functools.partial(random_cases, size, tokens) for size in SIZES),
        (functools.partial(other_cases, tokens),),
    )
    publish([case.measured(rate) for cases in groups for case in cases()], options.json)


if __name__ == "__main__":
    main()
