"""Counts of the tokens of requests, on Hopper: tables that a device keeps from step to step."""
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
from thalweg.kernels.sm90.tensors import check_device, check_integers, name_of

THREADS = 256
EACH = 8
"""Columns of a thread, THREADS apart."""
PIECE = THREADS * EACH


@functools.cache
def count_kernel(width: int, dtypes: tuple[torch.dtype, torch.dtype], architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that counts `width` tokens for each slot; dtypes: of slots and ids."""
    T = tilelang().language
    n, num_ids, num_cells = T.dynamic("N"), T.dynamic("num_ids"), T.dynamic("num_cells", "int64")
    slots_name, ids_name = map(name_of, dtypes)

    @T.prim_func
    def count_tokens(
        output_counts: T.Tensor((num_cells,), "int32"),
        slots: T.Tensor((n,), slots_name),
        token_ids: T.Tensor((num_ids,), ids_name),
        vocabulary: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(num_ids, THREADS), threads=THREADS) as block:
            i = block * THREADS + T.get_thread_binding()
            if i < num_ids:
                slot, token = T.cast(slots[T.truncdiv(i, width)], "int64"), T.cast(token_ids[i], "int64")
                if slot != 0 and token >= 0 and token < vocabulary:
                    T.atomic_add(output_counts[slot * vocabulary + token], 1)

    return compiled(count_tokens, architecture)


@functools.cache
def clear_kernel(architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that empties slots of both tables."""
    T = tilelang().language
    num_slots, num_cells = T.dynamic("M"), T.dynamic("num_cells", "int64")

    @T.prim_func
    def clear_counts(
        output_counts: T.Tensor((num_cells,), "int32"),
        in_prompt: T.Tensor((num_cells,), "uint8"),
        slots: T.Tensor((num_slots,), "int64"),
        vocabulary: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(vocabulary, PIECE), num_slots, threads=THREADS) as (piece, index):
            cell = slots[index] * vocabulary
            column = T.alloc_var("int64")
            for step in T.unroll(EACH):
                column = T.cast(piece, "int64") * PIECE + step * THREADS + T.get_thread_binding()
                if column < vocabulary:
                    output_counts[cell + column] = 0
                    in_prompt[cell + column] = T.cast(0, "uint8")

    return compiled(clear_counts, architecture)


@functools.cache
def texts_kernel(architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that marks tokens of prompts and counts those of outputs."""
    T = tilelang().language
    num_slots, num_cells = T.dynamic("M"), T.dynamic("num_cells", "int64")
    num_prompt, num_output = T.dynamic("P"), T.dynamic("Q")

    @T.prim_func
    def take_texts(
        output_counts: T.Tensor((num_cells,), "int32"),
        in_prompt: T.Tensor((num_cells,), "uint8"),
        slots: T.Tensor((num_slots,), "int64"),
        prompt_ids: T.Tensor((num_prompt,), "int64"),
        prompt_rows: T.Tensor((num_prompt,), "int64"),
        output_ids: T.Tensor((num_output,), "int64"),
        output_rows: T.Tensor((num_output,), "int64"),
        vocabulary: T.int64,
        prompts: T.int32,
        outputs: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(prompts + outputs, THREADS), threads=THREADS) as block:
            i = block * THREADS + T.get_thread_binding()
            slot, token = T.alloc_var("int64"), T.alloc_var("int64")
            if i < prompts:
                slot = slots[prompt_rows[i]]
                token = prompt_ids[i]
                if slot != 0 and token >= 0 and token < vocabulary:
                    in_prompt[slot * vocabulary + token] = T.cast(1, "uint8")
            if i >= prompts and i < prompts + outputs:
                slot = slots[output_rows[i - prompts]]
                token = output_ids[i - prompts]
                if slot != 0 and token >= 0 and token < vocabulary:
                    T.atomic_add(output_counts[slot * vocabulary + token], 1)

    return compiled(take_texts, architecture)


def check_tables(output_counts: Tensor, in_prompt: Tensor | None = None) -> None:
    """Raise ConfigError for tables [slots, V] that kernels do not take."""
    check_shape("output_counts", output_counts, ("slots", "V"))
    if in_prompt is not None:
        check_shape("in_prompt", in_prompt, tuple(output_counts.shape))
        if in_prompt.dtype != torch.bool or not in_prompt.is_contiguous():
            raise ConfigError(f"in_prompt is {in_prompt.dtype} {list(in_prompt.stride())}; adjacent bool is required")
    if output_counts.dtype != torch.int32 or not output_counts.is_contiguous():
        raise ConfigError(
            f"output_counts is {output_counts.dtype} with strides {list(output_counts.stride())}; adjacent int32 is "
            "required"
        )


def count_tokens(output_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """As the reference, of an adjacent table."""
    check_tables(output_counts)
    check_shape("slots", slots, ("N",))
    check_shape("token_ids", token_ids, (slots.shape[0], "k"))
    check_integers("slots", slots)
    check_integers("token_ids", token_ids)
    check_device(output_counts=output_counts, slots=slots, token_ids=token_ids)
    if token_ids.numel() == 0 or output_counts.numel() == 0:
        return
    with torch.cuda.device(output_counts.device):
        count_kernel(token_ids.shape[1], (slots.dtype, token_ids.dtype))(
            output_counts.view(-1), slots.contiguous(), token_ids.contiguous().view(-1), output_counts.shape[1]
        )


def reset_token_counts(
    output_counts: Tensor,
    in_prompt: Tensor,
    slots: Tensor,
    prompt_ids: Tensor,
    prompt_rows: Tensor,
    output_ids: Tensor,
    output_rows: Tensor,
) -> None:
    """As the reference, of adjacent tables."""
    check_tables(output_counts, in_prompt)
    check_shape("slots", slots, ("M",))
    check_shape("prompt_rows", prompt_rows, tuple(prompt_ids.shape))
    check_shape("output_rows", output_rows, tuple(output_ids.shape))
    check_device(output_counts=output_counts, in_prompt=in_prompt, slots=slots, prompt_ids=prompt_ids)
    if slots.shape[0] == 0 or output_counts.numel() == 0:
        return
    vocabulary, target = output_counts.shape[1], slots.long().contiguous()
    tables = output_counts.view(-1), in_prompt.view(torch.uint8).view(-1)
    prompts, outputs = prompt_ids.shape[0], output_ids.shape[0]
    # A text without tokens stands as the slots, of which none is read.
    prompt = (prompt_ids.long().contiguous(), prompt_rows.long().contiguous()) if prompts else (target, target)
    output = (output_ids.long().contiguous(), output_rows.long().contiguous()) if outputs else (target, target)
    with torch.cuda.device(output_counts.device):
        clear_kernel()(*tables, target, vocabulary)
        if prompts + outputs:
            texts_kernel()(*tables, target, *prompt, *output, vocabulary, prompts, outputs)


IMPLEMENTATIONS = tuple(implementation(function) for function in (count_tokens, reset_token_counts))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "count_tokens": functools.partial(count_kernel, 6, (torch.int32, torch.int32)),
    "clear_counts": clear_kernel,
    "take_texts": texts_kernel,
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
