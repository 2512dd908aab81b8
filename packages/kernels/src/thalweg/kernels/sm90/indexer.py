"""Index scores on Hopper: FP8 tensor cores on FP4 codes as they are, pages read in place.

The body is CUDA C++ (cuda/indexer.cuh), which TileLang launches. TileLang cannot express it: accumulators of a product
are one tile to it, not one per scale group; operands are made of FP4 codes by operations on whole words; and what is
fetched next depends on lists that are looked up tiles ahead.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.paged_indexer import check_blocks, check_paged_queries, check_rows_queries, check_width
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import processors, span

TILE = 128
THREADS = 128
BLOCKS_PER_SM = 4
ROWS = 8
"""Rows that share keys in rows, taken through a tile together."""
UNIT, LISTED_UNIT = 16, 8
"""Pages and listed blocks hold a multiple of so many keys."""
SCORE_ALIGNMENT = 64
"""Rows of scores start so many elements apart, or a multiple, for those who read them in vectors."""


@dataclass(frozen=True, slots=True)
class ScoreShape:
    """What a kernel is compiled for."""

    heads: int
    dim: int
    entries: int
    """Of a page; 0: keys in rows."""
    block_size: int
    """Of listed blocks; 0: every key."""

    def __post_init__(self) -> None:
        if self.heads % 8 or self.heads <= 0:
            raise ConfigError(f"q has {self.heads} index heads; a positive multiple of 8 is served")
        if self.dim not in (64, 128):
            raise ConfigError(f"q has index heads of {self.dim} columns; 64 and 128 are served")
        unit = LISTED_UNIT if self.block_size else UNIT
        if self.entries % unit:
            raise ConfigError(f"pages have {self.entries} entries; a multiple of {unit} is served")
        if self.block_size % LISTED_UNIT:
            raise ConfigError(f"block_size is {self.block_size}; a multiple of {LISTED_UNIT} is served")

    @property
    def rows(self) -> int:
        """Rows that a block takes through a tile together."""
        return 1 if self.entries or self.block_size else ROWS

    @property
    def stages(self) -> int:
        """Tiles of keys in shared memory, of which one is read."""
        return 5 if self.rows == 1 else 2

    @property
    def heads_at_once(self) -> int:
        """Index heads of one product of the tensor cores."""
        return next(count for count in (32, 16, 8) if self.heads % count == 0)

    @property
    def template(self) -> str:
        """The class of cuda/indexer.cuh that is this kernel's body."""
        keys = (self.heads, self.dim, self.entries, self.block_size)
        numbers = (*keys, self.rows, self.heads_at_once, self.stages)
        return f"thalweg::Scores<{', '.join(map(str, numbers))}>"

    @property
    def shared_bytes(self) -> int:
        """What the body needs, and a little for alignment, which it checks."""
        groups = self.dim // 32
        query = self.heads * (self.dim + 4 + 4 * groups)
        return self.rows * (query + 4) + self.stages * TILE * (self.dim // 2 + groups) + 256


def _entry(shape: ScoreShape) -> str:
    """The source of the function that a kernel calls."""
    return (
        cuda_source("indexer.cuh")
        + f"""
static_assert(sizeof({shape.template}::Shared) <= {shape.shared_bytes});
__device__ __forceinline__ void index_scores(
    const void* q, const void* q_scales, const void* head_weights, const void* keys, const void* key_scales,
    const void* tables, const void* begin, const void* end, const void* blocks, void* scores, long long page_stride,
    long long num_keys, int num_rows, int table_width, int listed, int width, int score_stride, void* memory) {{
  using namespace thalweg;
  {shape.template}::body(
      ScoreArguments{{static_cast<const uint8_t*>(q), static_cast<const uint8_t*>(q_scales),
                     static_cast<const __nv_bfloat16*>(head_weights), static_cast<const uint8_t*>(keys),
                     static_cast<const uint8_t*>(key_scales), static_cast<const int*>(tables),
                     static_cast<const int*>(begin), static_cast<const int*>(end), static_cast<const int*>(blocks),
                     static_cast<__nv_bfloat16*>(scores), static_cast<uint32_t>(page_stride), num_keys, num_rows,
                     table_width, listed, width, score_stride}},
      memory);
}}
"""
    )


@functools.cache
def index_scores_kernel(shape: ScoreShape, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel. Arguments that a kind of keys does not need are tensors of no elements."""
    T = tilelang().language
    source, heads, dim, shared_bytes = _entry(shape), shape.heads, shape.dim, shape.shared_bytes
    num_rows, num_bytes, scale_bytes = T.dynamic("num_rows"), T.dynamic("num_bytes", "int64"), T.dynamic("S", "int64")
    cells, begins, listed, num_scores = (T.dynamic(name, "int64") for name in ("cells", "begins", "listed", "scores"))

    @T.prim_func
    def index_scores(
        q: T.Tensor((num_rows, heads, dim // 2), "uint8"),
        q_scales: T.Tensor((num_rows, heads, dim // 32), "uint8"),
        head_weights: T.Tensor((num_rows, heads), "bfloat16"),
        keys: T.Tensor((num_bytes,), "uint8"),
        key_scales: T.Tensor((scale_bytes,), "uint8"),
        tables: T.Tensor((cells,), "int32"),
        begin: T.Tensor((begins,), "int32"),
        end: T.Tensor((num_rows,), "int32"),
        blocks: T.Tensor((listed,), "int32"),
        scores: T.Tensor((num_scores,), "bfloat16"),
        page_stride: T.int64,
        num_keys: T.int64,
        table_width: T.int32,
        blocks_of_row: T.int32,
        width: T.int32,
        score_stride: T.int32,
        grid: T.int32,
    ) -> None:
        with T.Kernel(grid, threads=THREADS):
            T.import_source(source)
            T.annotate_min_blocks_per_sm(BLOCKS_PER_SM)
            memory = T.alloc_shared((shared_bytes,), "uint8")
            T.evaluate(
                T.call_extern(
                    "handle",
                    "index_scores",
                    T.access_ptr(q, "r"),
                    T.access_ptr(q_scales, "r"),
                    T.access_ptr(head_weights, "r"),
                    T.access_ptr(keys, "r"),
                    T.access_ptr(key_scales, "r"),
                    T.access_ptr(tables, "r"),
                    T.access_ptr(begin, "r"),
                    T.access_ptr(end, "r"),
                    T.access_ptr(blocks, "r"),
                    T.access_ptr(scores, "w"),
                    page_stride,
                    num_keys,
                    num_rows,
                    table_width,
                    blocks_of_row,
                    width,
                    score_stride,
                    T.access_ptr(memory, "rw"),
                )
            )

    return compiled(index_scores, architecture)


def paged_indexer_scores(
    q: Tensor, q_scales: Tensor, head_weights: Tensor, view: Tensor, block_tables: Tensor, visible: Tensor, width: int
) -> Tensor:
    """As the reference, where a row sees no more than width entries; of those it sees more of, the first are scored."""
    check_paged_queries(q, q_scales, head_weights, view, block_tables, visible)
    check_width(width)
    shape = ScoreShape(q.shape[1], 2 * q.shape[2], view.shape[1], 0)
    return _launch(shape, q, q_scales, head_weights, visible, width, view=view, tables=block_tables)


def paged_candidate_scores(
    q: Tensor,
    q_scales: Tensor,
    head_weights: Tensor,
    view: Tensor,
    block_tables: Tensor,
    visible: Tensor,
    blocks: Tensor,
    block_size: int,
) -> Tensor:
    """As the reference."""
    check_paged_queries(q, q_scales, head_weights, view, block_tables, visible)
    check_blocks(blocks, block_size, q.shape[0])
    shape = ScoreShape(q.shape[1], 2 * q.shape[2], view.shape[1], block_size)
    if view.shape[1] % block_size:
        raise ConfigError(f"block_size is {block_size}; it must divide the {view.shape[1]} entries of a page")
    width = blocks.shape[1] * block_size
    return _launch(shape, q, q_scales, head_weights, visible, width, view=view, tables=block_tables, blocks=blocks)


def indexer_scores_rows(
    q: Tensor,
    q_scales: Tensor,
    head_weights: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    begin: Tensor,
    end: Tensor,
    width: int,
) -> Tensor:
    """As the reference, where no row has more than width keys; of those that it has more, the first are scored."""
    check_rows_queries(q, q_scales, head_weights, keys, key_scales, begin, end)
    check_width(width)
    shape = ScoreShape(q.shape[1], 2 * q.shape[2], 0, 0)
    return _launch(shape, q, q_scales, head_weights, end, width, rows=(keys, key_scales, begin))


def candidate_scores_rows(
    q: Tensor,
    q_scales: Tensor,
    head_weights: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    begin: Tensor,
    end: Tensor,
    blocks: Tensor,
    block_size: int,
) -> Tensor:
    """As the reference."""
    check_rows_queries(q, q_scales, head_weights, keys, key_scales, begin, end)
    check_blocks(blocks, block_size, q.shape[0])
    shape = ScoreShape(q.shape[1], 2 * q.shape[2], 0, block_size)
    width = blocks.shape[1] * block_size
    return _launch(shape, q, q_scales, head_weights, end, width, rows=(keys, key_scales, begin), blocks=blocks)


def _launch(
    shape: ScoreShape,
    q: Tensor,
    q_scales: Tensor,
    head_weights: Tensor,
    end: Tensor,
    width: int,
    *,
    view: Tensor | None = None,
    tables: Tensor | None = None,
    rows: tuple[Tensor, Tensor, Tensor] | None = None,
    blocks: Tensor | None = None,
) -> Tensor:
    """Scores [n, width] of keys in pages or in rows; what a kind of keys does not need is given as another tensor."""
    stride = -(-width // SCORE_ALIGNMENT) * SCORE_ALIGNMENT
    scores = torch.empty(q.shape[0], stride, dtype=torch.bfloat16, device=q.device)
    if rows is None:
        assert view is not None
        assert tables is not None
        _check_whole(q=q, q_scales=q_scales, head_weights=head_weights, end=end, block_tables=tables)
        _check_pages(view)
        keys = span(view) if view.numel() else view.flatten()
        key_scales, begin, page_stride, num_keys = q_scales, end, view.stride(0), 0
    else:
        keys, key_scales, begin = rows
        _check_whole(
            q=q, q_scales=q_scales, head_weights=head_weights, end=end, keys=keys, key_scales=key_scales, begin=begin
        )
        tables, page_stride, num_keys = end, 0, keys.shape[0]
    if blocks is not None:
        _check_whole(q=q, blocks=blocks)
    if 0 in scores.shape or 0 in keys.shape or 0 in tables.shape:
        return scores[:, :width]
    with torch.cuda.device(q.device):
        index_scores_kernel(shape)(
            q,
            q_scales,
            head_weights,
            keys.view(-1),
            key_scales.view(-1),
            tables.view(-1),
            begin,
            end,
            (end if blocks is None else blocks).view(-1),
            scores.view(-1),
            page_stride,
            num_keys,
            tables.shape[-1],
            0 if blocks is None else blocks.shape[1],
            width,
            stride,
            BLOCKS_PER_SM * processors(q.device),
        )
    return scores[:, :width]


_DTYPES = {
    **dict.fromkeys(("block_tables", "blocks", "begin", "end"), torch.int32),
    "head_weights": torch.bfloat16,
}


def _check_whole(q: Tensor, **tensors: Tensor) -> None:
    """Raise ConfigError unless these are whole tensors, as bulk loads want them, on the CUDA device of q."""
    if q.device.type != "cuda":
        raise ConfigError(f"q lies on {q.device}; a CUDA device is required")
    for name, tensor in {"q": q, **tensors}.items():
        if tensor.device != q.device:
            raise ConfigError(f"{name} lies on {tensor.device}, q on {q.device}; one device is required")
        if tensor.dtype != _DTYPES.get(name, torch.uint8):
            raise ConfigError(f"{name} has dtype {tensor.dtype}; {_DTYPES.get(name, torch.uint8)} is required")
        if not tensor.is_contiguous():
            raise ConfigError(f"{name} has strides {list(tensor.stride())}; a contiguous tensor is required")
        if name in ("q", "keys", "key_scales") and tensor.data_ptr() % 16:
            raise ConfigError(f"{name} starts at address {tensor.data_ptr():#x}; a multiple of 16 is required")


def _check_pages(view: Tensor) -> None:
    stride = view.stride(0)
    if view.shape[0] > 0 and (view.data_ptr() % 16 or stride % 16 or not 0 <= stride < 1 << 32):
        raise ConfigError(
            f"view starts at address {view.data_ptr():#x} with pages {stride} bytes apart; "
            "multiples of 16 are required, the distance below 2^32"
        )


IMPLEMENTATIONS = (
    implementation(paged_indexer_scores),
    implementation(paged_candidate_scores),
    implementation(indexer_scores_rows),
    implementation(candidate_scores_rows),
)

_SHAPES = {
    "paged_indexer_scores": (32, 128, 64, 0),
    "paged_candidate_scores": (32, 128, 128, 8),
    "indexer_scores_rows": (32, 128, 0, 0),
    "candidate_scores_rows": (32, 128, 0, 8),
}
COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    op: functools.partial(index_scores_kernel, ScoreShape(*shape)) for op, shape in _SHAPES.items()
}
"""Kernels at the sizes of the released model, by name, to be compiled for an architecture without a GPU."""
