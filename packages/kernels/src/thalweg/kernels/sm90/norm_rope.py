"""Keys on their way into the cache, on Hopper: norm, rotation, cast and store of a row in the lanes that hold it."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.norm_rope import check_norm_rope
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.record_codecs import codecs
from thalweg.kernels.sm90.record_lanes import Pages, lane_macros
from thalweg.kernels.sm90.record_shape import (
    HALF,
    PART,
    RESIDENT_BLOCKS,
    THREADS,
    RecordShape,
    lanes_of,
    pages_of,
    stored_shape,
    unit_dtype,
)
from thalweg.kernels.sm90.tensors import aligned_rows, check_device, name_of, span


@functools.cache
def _stages() -> SimpleNamespace:
    """The macros. values: float32 [16] of a lane; rounded: the same in bfloat16; lane: its place in the row."""
    T: Any = tilelang().language
    memory = lane_macros()

    @T.macro
    def round_part(values: Any, rounded: Any) -> None:
        memory.round_to(values, PART, rounded)
        for i in T.unroll(PART):
            values[i] = T.cast(rounded[i], "float32")

    @T.macro
    def norm(loaded: Any, weights: Any, lane: Any, width: int, eps: Any, values: Any, rounded: Any) -> None:
        """A lane's part of a row, normed; loaded and weights [1, 16]: what was fetched of the row and of the weight."""
        for i in T.unroll(PART):
            values[i] = T.cast(loaded[0, i], "float32")
        if loaded.dtype != "bfloat16":
            round_part(values, rounded)
        square, scale = T.alloc_var("float32"), T.alloc_var("float32")
        square = 0.0
        for i in T.unroll(PART):
            square = square + values[i] * values[i]
        if lane >= width // PART:
            square = 0.0
        for step in T.unroll(lanes_of(width).bit_length() - 1):
            square = square + T.shfl_xor(square, T.shift_left(1, step))
        scale = T.ieee_frsqrt(square / T.float32(width) + eps)
        for i in T.unroll(PART):
            values[i] = values[i] * scale * T.cast(weights[0, i], "float32")
        round_part(values, rounded)

    @T.macro
    def rotate(cos: Any, sin: Any, row: Any, lane: Any, width: int, rope: int, values: Any, rounded: Any) -> None:
        """Turn the pairs of the last columns, without fused multiply-adds, and round them to bfloat16."""
        first = (width - rope) // PART
        if lane >= first and lane < width // PART:
            cosines, sines = T.alloc_local((1, HALF), "float32"), T.alloc_local((1, HALF), "float32")
            memory.fetch(cos, row * (rope // PART) + lane - first, HALF, cosines, 0)
            memory.fetch(sin, row * (rope // PART) + lane - first, HALF, sines, 0)
            a, b = T.alloc_var("float32"), T.alloc_var("float32")
            for i in T.unroll(HALF):
                a = values[2 * i]
                b = values[2 * i + 1]
                values[2 * i] = T.ieee_sub(T.ieee_mul(a, cosines[0, i]), T.ieee_mul(b, sines[0, i]))
                values[2 * i + 1] = T.ieee_add(T.ieee_mul(a, sines[0, i]), T.ieee_mul(b, cosines[0, i]))
            round_part(values, rounded)

    return SimpleNamespace(norm=norm, rotate=rotate)


@functools.cache
def norm_rope_kernel(
    width: int, rope: int, x_dtype: torch.dtype, weight_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that writes normed and rotated rows."""
    T, memory, stage = tilelang().language, lane_macros(), _stages()
    num_elements, num_out = T.dynamic("num_elements", "int64"), T.dynamic("num_out", "int64")
    num_angles = T.dynamic("num_angles", "int64")
    lanes, per_block, parts = lanes_of(width), THREADS // lanes_of(width), width // PART

    @T.prim_func
    def norm_rope(
        x: T.Tensor((num_elements,), name_of(x_dtype)),
        row_parts: T.int32,
        weight: T.Tensor((width,), name_of(weight_dtype)),
        eps: T.float32,
        cos: T.Tensor((num_angles,), "float32"),
        sin: T.Tensor((num_angles,), "float32"),
        rotated: T.Tensor((num_out,), "bfloat16"),
        num_rows: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            lane = T.get_thread_binding() % lanes
            row, live, part = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int64")
            row = block * per_block + T.get_thread_binding() // lanes
            live = T.min(row, num_rows - 1)
            part = T.cast(live, "int64") * row_parts + T.min(lane, parts - 1)
            loaded, weights = T.alloc_local((1, PART), x.dtype), T.alloc_local((1, PART), weight.dtype)
            values, rounded = T.alloc_local((PART,), "float32"), T.alloc_local((PART,), "bfloat16")
            memory.fetch(x, part, PART, loaded, 0)
            memory.fetch(weight, T.min(lane, parts - 1), PART, weights, 0)
            stage.norm(loaded, weights, lane, width, eps, values, rounded)
            stage.rotate(cos, sin, live, lane, width, rope, values, rounded)
            if row < num_rows and lane < parts:
                memory.write(rotated, T.cast(row, "int64") * parts + lane, PART, rounded)

    return compiled(norm_rope, architecture)


@functools.cache
def norm_rope_store_kernel(
    shape: RecordShape,
    rope: int,
    x_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    slots_dtype: torch.dtype,
    architecture: str = ARCHITECTURE,
) -> Any:
    """The compiled kernel that writes normed rows, and records of the rotated ones."""
    T, memory, stage = tilelang().language, lane_macros(), _stages()
    num_elements, num_rows, num_out = T.dynamic("num_elements", "int64"), T.dynamic("n"), T.dynamic("num_out", "int64")
    num_units, num_bytes, num_angles = (T.dynamic(name, "int64") for name in ("num_units", "num_bytes", "num_angles"))
    width, lanes, per_block, parts = shape.width, shape.lanes, THREADS // shape.lanes, shape.parts

    @T.prim_func
    def norm_rope_store(
        x: T.Tensor((num_elements,), name_of(x_dtype)),
        row_parts: T.int32,
        weight: T.Tensor((width,), name_of(weight_dtype)),
        eps: T.float32,
        cos: T.Tensor((num_angles,), "float32"),
        sin: T.Tensor((num_angles,), "float32"),
        normed: T.Tensor((num_out,), "bfloat16"),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        pool: T.Tensor((num_units,), name_of(unit_dtype(shape.unit))),
        pool_bytes: T.Tensor((num_bytes,), "uint8"),
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            T.annotate_min_blocks_per_sm(RESIDENT_BLOCKS)
            lane = T.get_thread_binding() % lanes
            row, live, part = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int64")
            row = block * per_block + T.get_thread_binding() // lanes
            live = T.min(row, num_rows - 1)
            part = T.cast(live, "int64") * row_parts + T.min(lane, parts - 1)
            loaded, weights = T.alloc_local((1, PART), x.dtype), T.alloc_local((1, PART), weight.dtype)
            values, rounded = T.alloc_local((PART,), "float32"), T.alloc_local((PART,), "bfloat16")
            words, scale = T.alloc_local((1, 4), "int32"), T.alloc_local((1,), "int32")
            slot = T.alloc_var("int32")
            slot = -1
            if row < num_rows and lane < parts:
                slot = T.cast(slots[row], "int32")
            memory.fetch(x, part, PART, loaded, 0)
            memory.fetch(weight, T.min(lane, parts - 1), PART, weights, 0)
            stage.norm(loaded, weights, lane, width, eps, values, rounded)
            if row < num_rows and lane < parts:
                memory.write(normed, T.cast(row, "int64") * parts + lane, PART, rounded)
            stage.rotate(cos, sin, live, lane, width, rope, values, rounded)
            codecs().encode(shape, values, words, scale)
            if slot >= 0 and slot < capacity:
                memory.write_record(shape, Pages(pool, pool_bytes, page_bytes, entries), slot, lane, words, scale)

    return compiled(norm_rope_store, architecture)


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """As the reference; the rotated columns must be a multiple of 16."""
    rope = _checked(x, weight, cos, sin)
    rotated = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    if x.shape[0]:
        kernel = norm_rope_kernel(x.shape[1], rope, x.dtype, weight.dtype)
        with torch.cuda.device(x.device):
            kernel(*_inputs(x, weight, eps, cos, sin), rotated.view(-1), x.shape[0])
    return rotated


def norm_rope_store(
    x: Tensor,
    weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    view: Tensor,
    slots: Tensor,
    record_format: RecordFormat,
) -> Tensor:
    """As the reference; the rotated columns must be a multiple of 16, and a slot beyond the view stores nothing."""
    rope = _checked(x, weight, cos, sin)
    shape = stored_shape("x", x, view, slots, record_format)
    check_device(x=x, view=view, slots=slots)
    normed = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    if x.shape[0]:
        kernel = norm_rope_store_kernel(shape, rope, x.dtype, weight.dtype, slots.dtype)
        with torch.cuda.device(x.device):
            where = (slots.reshape(-1).contiguous(), *pages_of(view, shape))
            kernel(*_inputs(x, weight, eps, cos, sin), normed.view(-1), *where)
    return normed


def _checked(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> int:
    """The rotated columns."""
    check_norm_rope(x, weight, cos, sin)
    lanes_of(x.shape[1])
    if cos.shape[1] % HALF:
        raise ConfigError(f"cos has {cos.shape[1]} columns; kernels of sm90 turn a multiple of {HALF} pairs")
    check_device(x=x, weight=weight, cos=cos, sin=sin)
    return 2 * cos.shape[1]


def _inputs(
    x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor
) -> tuple[Tensor, int, Tensor, float, Tensor, Tensor]:
    """What both kernels read; the number says how many parts lie between the starts of two rows."""
    x = aligned_rows(x, PART)
    angles = (cos.contiguous().view(-1), sin.contiguous().view(-1))
    return span(x), x.stride(0) // PART, weight.contiguous(), eps, *angles


IMPLEMENTATIONS = tuple(implementation(function) for function in (norm_rope, norm_rope_store))

_MAIN = RecordShape(RecordFormat.FP4_MAIN, 512, None, 8)
COMPILE_EXAMPLES = {
    "norm_rope": functools.partial(norm_rope_kernel, 512, 64, torch.bfloat16, torch.float32),
    "norm_rope_store": functools.partial(norm_rope_store_kernel, _MAIN, 64, torch.bfloat16, torch.float32, torch.int32),
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
