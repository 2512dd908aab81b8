"""Keys on their way into the cache, on Hopper: norm, rotation, cast and store of a row in the lanes that hold it."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.cache import check_view
from thalweg.kernels.reference.norm_rope import check_norm_rope
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.cache import pages_of, pools_of
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.record_codecs import PART, RecordShape, codecs, lanes_of, record_shape, unit_dtype
from thalweg.kernels.sm90.tensors import aligned_rows, check_device, check_integers, name_of, span

THREADS = 256


@functools.cache
def _stages() -> SimpleNamespace:
    """The macros. `values`: float32 [16] of this lane; lane: its place among the `lanes` that share the row."""
    T: Any = tilelang().language
    code = codecs()

    @T.macro
    def round_part(values: Any) -> None:
        rounded = T.alloc_local((PART,), "bfloat16")
        for piece in T.unroll(4):
            for i in T.vectorized(4):
                rounded[4 * piece + i] = T.cast(values[4 * piece + i], "bfloat16")
        for i in T.unroll(PART):
            values[i] = T.cast(rounded[i], "float32")

    @T.macro
    def norm(x: Any, part: Any, weight: Any, lane: Any, width: int, eps: Any, values: Any) -> None:
        """values of a lane's part of x, normed and rounded to bfloat16."""
        code.load_part(x, part, values)
        if x.dtype != "bfloat16":
            round_part(values)
        square = T.alloc_var("float32")
        square = 0.0
        for i in T.unroll(PART):
            square = square + values[i] * values[i]
        if lane >= width // PART:
            square = 0.0
        for step in T.unroll(lanes_of(width).bit_length() - 1):
            square = square + T.shfl_xor(square, T.shift_left(1, step))
        scale = T.alloc_var("float32")
        scale = T.ieee_frsqrt(square / T.float32(width) + eps)
        weights = T.alloc_local((PART,), "float32")
        code.load_part(weight, T.min(lane, width // PART - 1), weights)
        for i in T.unroll(PART):
            values[i] = values[i] * scale * weights[i]
        round_part(values)

    @T.macro
    def rotate(cos: Any, sin: Any, row: Any, lane: Any, width: int, rope: int, values: Any) -> None:
        """Turn the pairs of the last columns, without fused multiply-adds, and round to bfloat16."""
        first = (width - rope) // PART
        if lane >= first and lane < width // PART:
            cosines, sines = T.alloc_local((PART // 2,), "float32"), T.alloc_local((PART // 2,), "float32")
            place = T.alloc_var("int32")
            place = (row * (rope // PART) + lane - first) * 2
            for piece in T.unroll(2):
                for i in T.vectorized(4):
                    cosines[4 * piece + i] = cos[(place + piece) * 4 + i]
                for i in T.vectorized(4):
                    sines[4 * piece + i] = sin[(place + piece) * 4 + i]
            for i in T.unroll(PART // 2):
                a = T.alloc_var("float32")
                b = T.alloc_var("float32")
                a = values[2 * i]
                b = values[2 * i + 1]
                values[2 * i] = T.ieee_sub(T.ieee_mul(a, cosines[i]), T.ieee_mul(b, sines[i]))
                values[2 * i + 1] = T.ieee_add(T.ieee_mul(a, sines[i]), T.ieee_mul(b, cosines[i]))
        round_part(values)

    return SimpleNamespace(norm=norm, rotate=rotate)


@functools.cache
def norm_rope_kernel(
    width: int, rope: int, x_dtype: torch.dtype, weight_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that writes normed and rotated rows."""
    T, code, stage = tilelang().language, codecs(), _stages()
    num_elements, num_out = T.dynamic("num_elements", "int64"), T.dynamic("num_out", "int64")
    num_angles = T.dynamic("num_angles", "int64")
    lanes, per_block, parts = lanes_of(width), THREADS // lanes_of(width), width // PART

    @T.prim_func
    def norm_rope(
        x: T.Tensor((num_elements,), name_of(x_dtype)),
        weight: T.Tensor((width,), name_of(weight_dtype)),
        cos: T.Tensor((num_angles,), "float32"),
        sin: T.Tensor((num_angles,), "float32"),
        rotated: T.Tensor((num_out,), "bfloat16"),
        num_rows: T.int32,
        row_parts: T.int32,
        eps: T.float32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            lane = T.get_thread_binding() % lanes
            row = T.alloc_var("int32")
            row = block * per_block + T.get_thread_binding() // lanes
            live = T.alloc_var("int32")
            live = T.min(row, num_rows - 1)
            values = T.alloc_local((PART,), "float32")
            stage.norm(x, T.cast(live, "int64") * row_parts + T.min(lane, parts - 1), weight, lane, width, eps, values)
            stage.rotate(cos, sin, live, lane, width, rope, values)
            if row < num_rows and lane < parts:
                code.store_part(rotated, T.cast(row, "int64") * parts + lane, values)

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
    T, code, stage = tilelang().language, codecs(), _stages()
    num_elements, num_rows, num_out = T.dynamic("num_elements", "int64"), T.dynamic("n"), T.dynamic("num_out", "int64")
    num_angles = T.dynamic("num_angles", "int64")
    num_units, num_bytes = T.dynamic("num_units", "int64"), T.dynamic("num_bytes", "int64")
    width, lanes, per_block, parts = shape.width, shape.lanes, THREADS // shape.lanes, shape.parts

    @T.prim_func
    def norm_rope_store(
        x: T.Tensor((num_elements,), name_of(x_dtype)),
        weight: T.Tensor((width,), name_of(weight_dtype)),
        cos: T.Tensor((num_angles,), "float32"),
        sin: T.Tensor((num_angles,), "float32"),
        normed: T.Tensor((num_out,), "bfloat16"),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        pool: T.Tensor((num_units,), name_of(unit_dtype(shape.unit))),
        pool_bytes: T.Tensor((num_bytes,), "uint8"),
        row_parts: T.int32,
        eps: T.float32,
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            lane = T.get_thread_binding() % lanes
            row = T.alloc_var("int32")
            row = block * per_block + T.get_thread_binding() // lanes
            live = T.alloc_var("int32")
            live = T.min(row, num_rows - 1)
            values, words = T.alloc_local((PART,), "float32"), T.alloc_local((4,), "int32")
            scale = T.alloc_local((1,), "int32")
            slot = T.alloc_var("int32")
            slot = -1
            if row < num_rows and lane < parts:
                slot = T.cast(slots[row], "int32")
            stage.norm(x, T.cast(live, "int64") * row_parts + T.min(lane, parts - 1), weight, lane, width, eps, values)
            if row < num_rows and lane < parts:
                code.store_part(normed, T.cast(row, "int64") * parts + lane, values)
            stage.rotate(cos, sin, live, lane, width, rope, values)
            code.encode(shape, values, words, scale)
            if slot >= 0 and slot < capacity:
                code.write_record(shape, pool, pool_bytes, page_bytes, entries, slot, lane, words, scale)

    return compiled(norm_rope_store, architecture)


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """As the reference; the rotated columns must be a multiple of 16."""
    rope = _checked(x, weight, cos, sin)
    rotated = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    if x.shape[0]:
        x = aligned_rows(x, PART)
        kernel = norm_rope_kernel(x.shape[1], rope, x.dtype, weight.dtype)
        with torch.cuda.device(x.device):
            kernel(span(x), weight.contiguous(), *_angles(cos, sin), rotated.view(-1), x.shape[0], _row_parts(x), eps)
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
    check_view(view, record_format)
    shape = record_shape(view, record_format)
    check_integers("slots", slots)
    if x.shape[1] != shape.width or slots.numel() != x.shape[0]:
        raise ConfigError(
            f"x is {tuple(x.shape)} for {slots.numel()} slots; records of {view.shape[3]} bytes need "
            f"[{slots.numel()}, {shape.width}]"
        )
    check_device(x=x, view=view, slots=slots)
    normed = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    if x.shape[0]:
        x = aligned_rows(x, PART)
        kernel = norm_rope_store_kernel(shape, rope, x.dtype, weight.dtype, slots.dtype)
        with torch.cuda.device(x.device):
            kernel(
                span(x),
                weight.contiguous(),
                *_angles(cos, sin),
                normed.view(-1),
                slots.reshape(-1).contiguous(),
                *pools_of(view, shape),
                _row_parts(x),
                eps,
                *pages_of(view),
            )
    return normed


def _checked(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> int:
    """The rotated columns."""
    check_norm_rope(x, weight, cos, sin)
    lanes_of(x.shape[1])
    if cos.shape[1] % (PART // 2):
        raise ConfigError(f"cos has {cos.shape[1]} columns; kernels of sm90 turn a multiple of {PART // 2} pairs")
    check_device(x=x, weight=weight, cos=cos, sin=sin)
    return 2 * cos.shape[1]


def _angles(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return cos.contiguous().view(-1), sin.contiguous().view(-1)


def _row_parts(rows: Tensor) -> int:
    """From row to row, in parts."""
    return rows.stride(0) // PART


IMPLEMENTATIONS = tuple(
    Implementation(
        op=function.__name__,
        backend="sm90",
        provider="tilelang",
        function=function,
        deterministic=True,
        batch_invariant=True,
        graph_safe=True,
    )
    for function in (norm_rope, norm_rope_store)
)

_MAIN = RecordShape(RecordFormat.FP4_MAIN, 512, None, 8)
COMPILE_EXAMPLES = {
    "norm_rope": functools.partial(norm_rope_kernel, 512, 64, torch.bfloat16, torch.float32),
    "norm_rope_store": functools.partial(norm_rope_store_kernel, _MAIN, 64, torch.bfloat16, torch.float32, torch.int32),
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
