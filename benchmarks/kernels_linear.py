"""Dense linears and the choice of experts on a GPU, at the dimensions of the release, against their floors.

The floor of a case is the larger of two times: that of its bytes (weights, rows and results, each once) at the rate of
a large copy, and that of its products at the rate of a large product of bfloat16. Weights change from call to call, and
are cold; rows are not. Times are those of a graph of several calls.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from cuda_timing import TENSOR_TFLOPS, against_floors, copy_rate, device_line, require_gpu
from report import Row, arguments, publish

from thalweg.kernels import Mxfp8Rows, bind

FP8 = {
    "q_a and kv": (1792, 5120, 1),
    "q_b": (32768, 1280, 1),
    "o_a, 8 groups": (8192, 4096, 8),
    "o_b": (5120, 8192, 1),
    "shared gate and up": (4608, 5120, 1),
    "shared down": (5120, 2304, 1),
    "index queries": (4096, 1280, 1),
    "Engram": (25600, 6144, 1),
}
BF16 = {
    "router": (384, 5120),
    "compressor": (1024, 5120),
    "index compressor": (512, 5120),
    "index head weights": (32, 5120),
    "head": (129_280, 5120),
}
"""Rows and columns of each weight; FP8: groups, too."""
EXPERTS, CHOSEN = 384, 6
NUM_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
COLD_BYTES = 200_000_000
"""Of the weights of one graph, which the L2 cache does not hold."""


@dataclass(frozen=True)
class Case:
    """One size of one op."""

    name: str
    num_rows: int
    num_bytes: int
    flops: int
    calls: list[Callable[[], object]]

    def measured(self, bytes_per_us: float) -> Row:
        """A row of the table."""
        named: Row = {"case": self.name, "rows": self.num_rows}
        return {**named, **against_floors(self.calls, self.num_bytes, self.flops, bytes_per_us)}


def random_bytes(*shape: int, low: int = 0, high: int = 120) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda")


def fp8_cases(name: str, num_rows: tuple[int, ...]) -> list[Case]:
    (out, width, groups), ops = FP8[name], bind("sm90")
    count = max(2, COLD_BYTES // (out * width))
    weights = [
        ops.pack_fp8_weight(random_bytes(out, width), random_bytes(out // 32, width // 32, low=115, high=122))
        for _ in range(count)
    ]
    cases = []
    for n in num_rows:
        x = Mxfp8Rows(random_bytes(n, groups * width), random_bytes(n, groups * width // 32, low=118, high=124))
        linear = ops.fp8_linear if groups == 1 else functools.partial(ops.grouped_fp8_linear, groups=groups)
        num_bytes = sum(t.nbytes for t in (*x, weights[0].tiles, weights[0].scales)) + 2 * n * out
        cases.append(Case(name, n, num_bytes, 2 * n * out * width, [functools.partial(linear, x, w) for w in weights]))
    return cases


def bf16_cases(name: str, num_rows: tuple[int, ...]) -> list[Case]:
    (out, width), ops = BF16[name], bind("sm90")
    count = max(1, min(64, COLD_BYTES // (2 * out * width)))
    weights = [torch.randn(out, width, device="cuda").bfloat16() for _ in range(count)]
    cases = []
    for n in num_rows:
        x = torch.randn(n, width, device="cuda").bfloat16()
        num_bytes = 2 * (x.numel() + out * width) + 4 * n * out
        calls = [functools.partial(ops.bf16_linear, x, w, torch.float32) for w in weights]
        cases.append(Case(name, n, num_bytes, 2 * n * out * width, calls))
    return cases


def gate_cases(num_rows: tuple[int, ...]) -> list[Case]:
    ops = bind("sm90")
    bias, image_bias = torch.randn(2, EXPERTS, device="cuda")
    cases = []
    for n in num_rows:
        images, valid = torch.rand(2, n, device="cuda") < 0.5
        calls = [
            functools.partial(
                ops.topk_gate, torch.randn(n, EXPERTS, device="cuda"), bias, CHOSEN, 2.5, image_bias, images, valid
            )
            for _ in range(4)
        ]
        cases.append(Case("choice of experts", n, n * (4 * EXPERTS + 12 * CHOSEN + 2), 0, calls))
    return cases


def main() -> None:
    options = arguments("Dense linears and the gate on a GPU against their floors.").parse_args()
    require_gpu()
    rate = copy_rate()
    print(f"{device_line()}, copies {rate / 1e6:.2f} TB/s, products {TENSOR_TFLOPS:.0f} TFLOP/s")
    num_rows = (8, 64) if options.smoke else NUM_ROWS
    fp8, bf16 = (list(sizes)[:1] if options.smoke else list(sizes) for sizes in (FP8, BF16))
    groups = itertools.chain(
        (functools.partial(fp8_cases, name, num_rows) for name in fp8),
        (functools.partial(bf16_cases, name, num_rows[:-1]) for name in bf16),
        (functools.partial(gate_cases, num_rows),),
    )
    publish([case.measured(rate) for cases in groups for case in cases()], options.json)


if __name__ == "__main__":
    main()
