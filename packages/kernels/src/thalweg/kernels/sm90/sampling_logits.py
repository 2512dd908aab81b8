"""What requests change about their logits, on Hopper: penalties by counts of tokens, biases and bans."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.sampling_counts import EACH, PIECE, THREADS, check_tables
from thalweg.kernels.sm90.tensors import check_device, check_integers, name_of, span


@functools.cache
def penalties_kernel(drafts: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `apply_penalties`; drafts: of a row, whose ids count as well."""
    T = tilelang().language
    num_rows, num_logits, num_cells = T.dynamic("R"), T.dynamic("num_logits", "int64"), T.dynamic("num_cells", "int64")
    num_ids = T.dynamic("num_ids")

    @T.prim_func
    def apply_penalties(
        logits: T.Tensor((num_logits,), "float32"),
        output_counts: T.Tensor((num_cells,), "int32"),
        in_prompt: T.Tensor((num_cells,), "uint8"),
        slots: T.Tensor((num_rows,), "int32"),
        step_ids: T.Tensor((num_ids,), "int32"),
        repetition: T.Tensor((num_rows,), "float32"),
        presence: T.Tensor((num_rows,), "float32"),
        frequency: T.Tensor((num_rows,), "float32"),
        row_stride: T.int64,
        vocabulary: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(vocabulary, PIECE), num_rows, threads=THREADS) as (piece, row):
            cell = T.cast(slots[row], "int64") * vocabulary
            column, count = T.alloc_var("int32"), T.alloc_var("int32")
            value = T.alloc_var("float32")
            for step in T.unroll(EACH):
                column = piece * PIECE + step * THREADS + T.get_thread_binding()
                if column < vocabulary:
                    count = output_counts[cell + column]
                    for draft in T.unroll(drafts):
                        if step_ids[row * drafts + draft] == column:
                            count = count + 1
                    if count > 0 or in_prompt[cell + column] != T.cast(0, "uint8"):
                        value = logits[row * row_stride + column]
                        value = T.if_then_else(
                            value > 0, T.ieee_fdiv(value, repetition[row]), T.ieee_mul(value, repetition[row])
                        )
                        value = T.ieee_sub(value, T.ieee_mul(frequency[row], T.cast(count, "float32")))
                        if count > 0:
                            value = T.ieee_sub(value, presence[row])
                        logits[row * row_stride + column] = value

    return compiled(apply_penalties, architecture)


@functools.cache
def cells_kernel(adds: bool, dtypes: tuple[torch.dtype, torch.dtype], architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that adds values to cells of logits, or makes the cells -inf; dtypes: of rows and ids."""
    T = tilelang().language
    num_cells, num_logits, num_biases = (
        T.dynamic("num_cells"),
        T.dynamic("num_logits", "int64"),
        T.dynamic("num_biases"),
    )
    rows_name, ids_name = map(name_of, dtypes)

    @T.prim_func
    def edit_cells(
        logits: T.Tensor((num_logits,), "float32"),
        rows: T.Tensor((num_cells,), rows_name),
        ids: T.Tensor((num_cells,), ids_name),
        biases: T.Tensor((num_biases,), "float32"),
        row_stride: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(num_cells, THREADS), threads=THREADS) as block:
            i = block * THREADS + T.get_thread_binding()
            if i < num_cells:
                place = T.cast(rows[i], "int64") * row_stride + T.cast(ids[i], "int64")
                if adds:
                    logits[place] = T.ieee_add(logits[place], biases[i])
                else:
                    logits[place] = -T.infinity("float32")

    return compiled(edit_cells, architecture)


def _check_logits(logits: Tensor) -> None:
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.stride(1) != 1:
        raise ConfigError(
            f"logits are {logits.dtype} {list(logits.shape)} with strides {list(logits.stride())}; float32 [R, V], "
            "those of a row next to each other, is required"
        )


def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    in_prompt: Tensor,
    slots: Tensor,
    step_ids: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """As the reference. Rows of logits may lie apart; a row itself may not."""
    check_tables(output_counts, in_prompt)
    _check_logits(logits)
    check_shape("logits", logits, ("R", output_counts.shape[1]))
    num_rows, vocabulary = logits.shape
    check_shape("step_ids", step_ids, (num_rows, "G"))
    check_integers("step_ids", step_ids)
    check_integers("slots", slots)
    amounts = {"repetition": repetition, "presence": presence, "frequency": frequency}
    for name, values in (("slots", slots), *amounts.items()):
        check_shape(name, values, (num_rows,))
    tables = {"output_counts": output_counts, "in_prompt": in_prompt}
    check_device(logits=logits, slots=slots, step_ids=step_ids, **tables, **amounts)
    if 0 in logits.shape:
        return
    drafts = step_ids.shape[1]
    places = slots.int().contiguous()
    ids = step_ids.int().contiguous().view(-1) if drafts else places
    with torch.cuda.device(logits.device):
        penalties_kernel(drafts)(
            span(logits.detach()),
            output_counts.view(-1),
            in_prompt.view(torch.uint8).view(-1),
            places,
            ids,
            *(values.float().contiguous() for values in amounts.values()),
            logits.stride(0),
            vocabulary,
        )


def _edit(logits: Tensor, rows: Tensor, ids: Tensor, biases: Tensor | None) -> None:
    _check_logits(logits)
    check_shape("ids", ids, tuple(rows.shape))
    check_integers("rows", rows)
    check_integers("ids", ids)
    check_device(logits=logits, rows=rows, ids=ids, **({} if biases is None else {"biases": biases}))
    if rows.numel() == 0 or logits.numel() == 0:
        return
    flat = span(logits.detach())
    values = flat if biases is None else biases.float().contiguous()
    with torch.cuda.device(logits.device):
        cells_kernel(biases is not None, (rows.dtype, ids.dtype))(
            flat, rows.contiguous(), ids.contiguous(), values, logits.stride(0)
        )


def add_biases(logits: Tensor, rows: Tensor, ids: Tensor, biases: Tensor) -> None:
    """As the reference, of float32 logits. Rows may lie apart; a row itself may not."""
    check_shape("biases", biases, tuple(rows.shape))
    _edit(logits, rows, ids, biases)


def forbid_tokens(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    """As the reference, of float32 logits. Rows may lie apart; a row itself may not."""
    _edit(logits, rows, ids, None)


IMPLEMENTATIONS = tuple(implementation(function) for function in (apply_penalties, add_biases, forbid_tokens))

_LONGS = (torch.int64, torch.int64)
COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "apply_penalties": functools.partial(penalties_kernel, 5),
    "add_biases": functools.partial(cells_kernel, True, _LONGS),
    "forbid_tokens": functools.partial(cells_kernel, False, _LONGS),
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
