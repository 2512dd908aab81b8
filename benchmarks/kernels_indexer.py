"""The indexer on a GPU, at the dimensions of the release, against its floors: scores, selections, candidate blocks.

The floor of a case is the larger of two times: that of its bytes (keys or scores read once, scores or ids written once)
at the rate of a large copy, and that of its products at the rate of a large product of bfloat16. Every call reads keys
or scores of its own, which are cold; times are those of a graph of several calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from cuda_timing import TENSOR_TFLOPS, against_floors, copy_rate, device_line, require_gpu
from report import Row, arguments, publish
from torch import Tensor

from thalweg.kernels import bind

HEADS, DIM, ENTRIES, RECORD = 32, 128, 64, 68
TOPK, BLOCK_SIZE, TOPK_BLOCKS = 512, 8, 2048
CONTEXT = 131_072
COLD_BYTES = 300_000_000
"""Read by one graph, which the L2 cache does not hold."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One size of one op."""

    name: str
    num_rows: int
    columns: int
    num_bytes: int
    flops: int
    calls: list[Call]

    def measured(self, bytes_per_us: float) -> Row:
        """A row of the table."""
        named: Row = {"case": self.name, "rows": self.num_rows, "columns": self.columns}
        return {**named, **against_floors(self.calls, self.num_bytes, self.flops, bytes_per_us)}


def random_bytes(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda")


def random_queries(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    weights = torch.randn(rows, HEADS, device="cuda").bfloat16()
    return random_bytes(rows, HEADS, DIM // 2), random_bytes(rows, HEADS, DIM // 32, low=122, high=128), weights


def random_pages(pages: int) -> Tensor:
    """Pages of random keys; scales within a few binades."""
    memory = random_bytes(pages, ENTRIES * RECORD)
    memory[:, ENTRIES * DIM // 2 :] = random_bytes(pages, ENTRIES * DIM // 32, low=120, high=126)
    return memory.view(pages, ENTRIES, 1, RECORD)


def random_blocks(rows: int, entries: int) -> Tensor:
    """int32 [rows, TOPK_BLOCKS] ascending."""
    order = [torch.randperm(entries // BLOCK_SIZE, device="cuda")[:TOPK_BLOCKS].sort().values for _ in range(rows)]
    return torch.stack(order).int()


def times(rows: int, num_bytes: int) -> range:
    return range(max(2, min(16, COLD_BYTES // (rows * num_bytes))))


def decode_cases(rows: int, context: int, rows_of_sequence: int = 1) -> Iterator[Case]:
    """Scores of pages; rows of one sequence have its keys."""
    ops, sequences = bind("sm90"), rows // rows_of_sequence
    cells = context // ENTRIES
    visible = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    dense: list[Call] = []
    restricted: list[Call] = []
    for _ in times(sequences, context * RECORD):
        tables = torch.randperm(sequences * cells, device="cuda").int().view(sequences, cells)
        tables = tables.repeat_interleave(rows_of_sequence, 0)
        given = (*random_queries(rows), random_pages(sequences * cells), tables, visible)
        dense.append(functools.partial(ops.paged_indexer_scores, *given, context))
        restricted.append(
            functools.partial(ops.paged_candidate_scores, *given, random_blocks(rows, context), BLOCK_SIZE)
        )
    products = 2 * HEADS * DIM
    label = "" if rows_of_sequence == 1 else f", {rows_of_sequence} rows of a sequence"
    keys = sequences * context
    yield Case(f"scores{label}", rows, context, keys * RECORD + 2 * rows * context, rows * context * products, dense)
    listed = TOPK_BLOCKS * BLOCK_SIZE
    if rows_of_sequence == 1 and listed <= context:
        yield Case("scores in blocks", rows, listed, rows * listed * (RECORD + 2), rows * listed * products, restricted)


def prefill_cases(rows: int, keys: int) -> Iterator[Case]:
    """Scores of rows with all keys of one sequence."""
    ops = bind("sm90")
    begin, end = torch.zeros(rows, dtype=torch.int32, device="cuda"), torch.full((rows,), keys, device="cuda").int()
    given = (*random_queries(rows), random_bytes(keys, DIM // 2), random_bytes(keys, DIM // 32, low=120, high=126))
    num_bytes = keys * RECORD + 2 * rows * keys
    call = functools.partial(ops.indexer_scores_rows, *given, begin, end, keys)
    yield Case("scores of a prompt", rows, keys, num_bytes, rows * keys * 2 * HEADS * DIM, [call])


def selection_cases(rows: int, columns: int) -> Iterator[Case]:
    """Selections of tokens, and of blocks from the best scores of each."""
    ops = bind("sm90")
    visible = torch.full((rows,), columns, dtype=torch.int32, device="cuda")
    scores = [torch.randn(rows, columns, device="cuda").bfloat16() for _ in times(rows, 2 * columns)]
    selections = [functools.partial(ops.select_topk, one, visible, TOPK) for one in scores]
    library = [functools.partial(torch.topk, one, TOPK, sorted=False) for one in scores[:4]]
    num_bytes = rows * (2 * columns + 4 * TOPK)
    yield Case(f"top {TOPK}", rows, columns, num_bytes, 0, selections)
    yield Case(f"top {TOPK} by torch.topk, any order and ties", rows, columns, num_bytes, 0, library)
    blocks = columns // BLOCK_SIZE
    maxima = [functools.partial(ops.block_scores, one, visible, BLOCK_SIZE) for one in scores]
    yield Case("best of each block", rows, columns, rows * 2 * (columns + blocks), 0, maxima)
    best = [call() for call in maxima]
    chosen = [functools.partial(ops.select_candidate_blocks, one, visible, BLOCK_SIZE, TOPK_BLOCKS) for one in best]
    yield Case(f"top {TOPK_BLOCKS} blocks", rows, blocks, rows * (2 * blocks + 4 * TOPK_BLOCKS), 0, chosen)


def block_cases(rows: int, context: int) -> Iterator[Case]:
    """Lengths of compact rows, and ids found in them."""
    ops = bind("sm90")
    listed = [random_blocks(rows, context) for _ in range(4)]
    visible = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    compact = torch.randint(0, TOPK_BLOCKS * BLOCK_SIZE, (rows, TOPK), device="cuda").int()
    lengths = [functools.partial(ops.compact_lengths, one, visible, BLOCK_SIZE) for one in listed]
    restored = [functools.partial(ops.restore_indices, compact, one, BLOCK_SIZE) for one in listed]
    yield Case("lengths in blocks", rows, TOPK_BLOCKS, 4 * rows * (TOPK_BLOCKS + 2), 0, lengths)
    yield Case("ids in blocks", rows, TOPK, 12 * rows * TOPK, 0, restored)


def cases(is_smoke: bool) -> Iterator[Case]:
    if is_smoke:
        yield from decode_cases(2, 32_768)
        yield from selection_cases(2, 32_768)
        return
    for rows, context in ((64, CONTEXT), (256, 32_768), (64, 8192), (1, CONTEXT)):
        yield from decode_cases(rows, context)
    yield from decode_cases(64 * 6, CONTEXT, 6)
    yield from prefill_cases(8192, 8192)
    yield from prefill_cases(2048, 65_536)
    for rows in (1, 64, 128, 256):
        yield from selection_cases(rows, CONTEXT)
    yield from selection_cases(2, 1 << 20)
    yield from block_cases(64, CONTEXT)


def main() -> None:
    options = arguments("The indexer on a GPU against its floors.").parse_args()
    require_gpu()
    rate = copy_rate()
    print(f"{device_line()}, copies {rate / 1e6:.2f} TB/s, products {TENSOR_TFLOPS:.0f} TFLOP/s")
    publish([case.measured(rate) for case in cases(options.smoke)], options.json)


if __name__ == "__main__":
    main()
