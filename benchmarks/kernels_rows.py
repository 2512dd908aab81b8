"""Row kernels of the forward pass at real width, against the floor of the memory.

A floor counts every tensor that is read or written once, weights included, and moves the bytes at the rate of a large
copy. Calls are replayed as a graph and go round among tensors of more than the L2 cache. `--smoke` runs the references
on the CPU, by the clock of the host. `--only` takes ops whose name contains a word.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cuda_timing import copy_rate, device_line, graph_time_us, require_cuda
from report import Row, arguments, publish
from torch import Tensor

from thalweg.kernels import HcMix, bind

ROWS = (1, 64, 256, 8192)
NARROW_ROWS = 131_072
CACHE_BYTES = 300e6
"""What calls of a graph touch in all: several times the L2 cache."""
MOST_COPIES = 48
HIDDEN, STREAMS, HEADS, HEAD_DIM, ROPE = 5120, 4, 64, 512, 64
LATENT, EXPERT, INDEX_HEADS, INDEX_DIM = 1280, 2304, 32, 128
TABLE_ROWS, TABLE_WIDTH, BUCKETS, NGRAM, MARKOV = 1_000_000, 256, 24, 4, 256
EPS = 1e-6

Inputs = Callable[[int], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One op at one width."""

    op: str
    what: str
    inputs: Inputs
    """From a number of rows to arguments."""
    rows: Sequence[int] = ROWS
    is_in_place: bool = False
    """What is read is written, too: a part of the first argument as large as what is rotated."""


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def mix(n: int) -> HcMix:
    return HcMix(torch.rand(n, STREAMS), torch.rand(n, STREAMS), torch.rand(n, STREAMS, STREAMS) / STREAMS)


def tables(n: int) -> tuple[Tensor, Tensor]:
    angle = torch.randn(n, ROPE // 2)
    return angle.cos(), angle.sin()


@functools.cache
def engram_table(device: str) -> tuple[Tensor, Tensor]:
    rows = TABLE_ROWS if device == "cuda" else 1000
    return tuple(torch.randint(256, (rows, width), dtype=torch.uint8) for width in (TABLE_WIDTH, TABLE_WIDTH // 32))


def lookup(n: int) -> tuple[Any, ...]:
    codes, scales = engram_table(torch.get_default_device().type)
    return codes, scales, torch.randint(codes.shape[0], (n, BUCKETS))


def hashing(n: int) -> tuple[Any, ...]:
    primes, offsets = torch.randint(10**6, 10**7, (BUCKETS,)), torch.randint(10**9, (BUCKETS,))
    return torch.randint(100_000, (n, NGRAM)), torch.randint(1, 2**40, (NGRAM,)), primes, offsets


def mixing(n: int) -> tuple[Any, ...]:
    mixes = (2 + STREAMS) * STREAMS
    fn = torch.randn(mixes, STREAMS * HIDDEN) / 100
    return bf16(n, STREAMS, HIDDEN), fn, torch.rand(3), torch.randn(mixes), EPS, EPS, 20


CASES = (
    Case("rms_norm", "5120", lambda n: (bf16(n, HIDDEN), bf16(HIDDEN), EPS)),
    Case("norm_quantize", "5120", lambda n: (bf16(n, HIDDEN), bf16(HIDDEN), EPS)),
    Case("norm_quantize", "1280", lambda n: (bf16(n, LATENT), bf16(LATENT), EPS), (1, 64, 256, 65_536)),
    Case("rms_norm", "512", lambda n: (bf16(n, HEAD_DIM), bf16(HEAD_DIM), EPS), (64, 256, NARROW_ROWS)),
    Case("quantize_mxfp8", "5120", lambda n: (bf16(n, HIDDEN),)),
    Case("quantize_mxfp8", "8192", lambda n: (bf16(n, 8192),)),
    Case("swiglu_quantize", "2304, weighted", lambda n: (bf16(n, 2 * EXPERT), 10.0, torch.rand(n)), (*ROWS, 32_768)),
    Case("hc_read", "4 x 5120", lambda n: (bf16(n, STREAMS, HIDDEN), torch.rand(n, STREAMS), bf16(HIDDEN), EPS)),
    Case("hc_collapse", "4 x 5120", lambda n: (bf16(n, STREAMS, HIDDEN), torch.rand(n, STREAMS))),
    Case("hc_advance", "4 x 5120", lambda n: (bf16(n, STREAMS, HIDDEN), bf16(n, HIDDEN), mix(n), bf16(HIDDEN), EPS)),
    Case("hc_mix", "4 x 5120", mixing, (1, 64, 256, 1024, 2048, 4096, 8192)),
    Case("rotate_rows", "64 x 512", lambda n: (bf16(n, HEADS, HEAD_DIM), *tables(n)), is_in_place=True),
    Case("rotate_quantize_mxfp4", "32 x 128", lambda n: (bf16(n, INDEX_HEADS, INDEX_DIM), *tables(n))),
    Case("unrotate_quantize", "64 x 512", lambda n: (bf16(n, HEADS, HEAD_DIM), *tables(n))),
    Case("engram_hash", "24 of 4-grams", hashing),
    Case("engram_lookup", "24 x 256", lookup),
    Case(
        "engram_update",
        "4 x 5120",
        lambda n: (bf16(n, STREAMS, HIDDEN), bf16(n, 5 * HIDDEN), bf16(STREAMS, HIDDEN), bf16(STREAMS, HIDDEN), EPS),
    ),
    Case("target_feature", "4 x 5120", lambda n: (bf16(n, STREAMS, HIDDEN),)),
    Case("confidence", "5120 + 256", lambda n: (bf16(n, HIDDEN), bf16(n, MARKOV), torch.rand(HIDDEN + MARKOV), 1.5)),
)


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)


def moved_bytes(case: Case, given: tuple[Any, ...], result: Any) -> float:
    """Bytes that a call reads and writes; of a table only the rows that are looked up, of rotated rows the columns."""
    if case.op == "engram_lookup":
        buckets = given[2]
        return buckets.nbytes + 2 * sum(part.nbytes for part in tensors(result))
    if case.is_in_place:
        rotated = given[0].nbytes * ROPE / HEAD_DIM
        return 2 * rotated + sum(part.nbytes for part in given[1:])
    return sum(part.nbytes for part in (*tensors(given), *tensors(result)))


def host_time_us(calls: Sequence[Callable[[], object]]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return 1e6 * (time.perf_counter() - start) / len(calls)


def measure(case: Case, n: int, device: str, bytes_per_us: float) -> Row:
    """One row of the table."""
    op = getattr(bind("sm90" if device == "cuda" else "cpu"), case.op)
    with torch.device(device):
        given = [case.inputs(n)]
        num_bytes = moved_bytes(case, given[0], op(*given[0]))
        copies = min(MOST_COPIES, 1 + int(CACHE_BYTES / num_bytes)) if device == "cuda" else 1
        given += [case.inputs(n) for _ in range(copies - 1)]
    calls = [functools.partial(op, *arguments) for arguments in given]
    time_us = graph_time_us(calls * max(1, 8 // copies)) if device == "cuda" else host_time_us(calls)
    floor = num_bytes / bytes_per_us
    return {
        "op": case.op,
        "columns": case.what,
        "rows": n,
        "us": time_us,
        "MB": num_bytes / 1e6,
        "floor us": floor,
        "% of floor": 100 * floor / time_us,
    }


def main() -> None:
    parser = arguments("Row kernels of the forward pass.")
    parser.add_argument("--only", default="", metavar="WORD", help="only ops whose name contains this")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only in case.op]
    if options.smoke:
        publish([measure(case, 1, "cpu", 1e4) for case in chosen], options.json)
        return
    require_cuda("--smoke runs the references without one")
    bytes_per_us = copy_rate()
    print(f"{device_line()}; a large copy moves {bytes_per_us / 1e6:.2f} TB/s")
    publish([measure(case, n, "cuda", bytes_per_us) for case in chosen for n in case.rows], options.json)


if __name__ == "__main__":
    main()
