"""Entries of rows and of lists by token id, on Hopper: one of each row, and drafts' lists in the order of targets'."""
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
from thalweg.kernels.sm90.tensors import check_device, check_integers, name_of, span

THREADS = 128


@functools.cache
def entry_kernel(dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `token_logprobs`; dtype: of ids."""
    T = tilelang().language
    n, num_logprobs = T.dynamic("n"), T.dynamic("num_logprobs", "int64")

    @T.prim_func
    def token_logprobs(
        logprobs: T.Tensor((num_logprobs,), "float32"),
        token_ids: T.Tensor((n,), name_of(dtype)),
        out: T.Tensor((n,), "float32"),
        row_stride: T.int64,
        vocabulary: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(n, THREADS), threads=THREADS) as block:
            i = block * THREADS + T.get_thread_binding()
            if i < n:
                token = T.cast(token_ids[i], "int64")
                if token >= 0 and token < vocabulary:
                    out[i] = logprobs[i * row_stride + token]
                else:
                    out[i] = -T.infinity("float32")

    return compiled(token_logprobs, architecture)


@functools.cache
def find_kernel(dtypes: tuple[torch.dtype, torch.dtype], architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that finds the first place of an id in each row of keys; dtypes: of keys and ids.

    ids come from ids[rows[i]]; the place goes to places, the value there, or -inf, to found, if those are wanted.
    """
    T = tilelang().language
    n, num_keys, num_values, num_ids = T.dynamic("n"), T.dynamic("num_keys"), T.dynamic("num_values"), T.dynamic("m")
    num_places, num_found = T.dynamic("num_places"), T.dynamic("num_found")
    keys_name, ids_name = map(name_of, dtypes)

    @T.prim_func
    def find_keys(
        keys: T.Tensor((num_keys,), keys_name),
        values: T.Tensor((num_values,), "float32"),
        ids: T.Tensor((num_ids,), ids_name),
        rows: T.Tensor((n,), "int64"),
        places: T.Tensor((num_places,), "int32"),
        found: T.Tensor((num_found,), "float32"),
        width: T.int32,
        wants_places: T.bool,
        wants_values: T.bool,
    ) -> None:
        with T.Kernel(n, threads=THREADS) as row:
            first = T.alloc_shared((1,), "int32")
            wanted = T.cast(ids[rows[row]], "int64")
            if T.get_thread_binding() == 0:
                first[0] = width
            T.sync_threads()
            column = T.alloc_var("int32")
            column = T.get_thread_binding()
            while column < width:
                if T.cast(keys[row * width + column], "int64") == wanted:
                    T.atomic_min(first[0], column)
                column = column + THREADS
            T.sync_threads()
            if T.get_thread_binding() == 0:
                if wants_places:
                    places[row] = T.if_then_else(first[0] < width, first[0], -1)
                if wants_values:
                    if first[0] < width:
                        found[row] = values[row * width + first[0]]
                    else:
                        found[row] = -T.infinity("float32")

    return compiled(find_keys, architecture)


@functools.cache
def align_kernel(dtypes: tuple[torch.dtype, torch.dtype], architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that moves values of a draft's list to the columns of a target's; dtypes: of their ids."""
    T = tilelang().language
    n, num_drafts, num_targets = T.dynamic("n"), T.dynamic("num_drafts"), T.dynamic("num_targets")
    drafts_name, targets_name = map(name_of, dtypes)

    @T.prim_func
    def align_lists(
        draft_ids: T.Tensor((num_drafts,), drafts_name),
        draft_logprobs: T.Tensor((num_drafts,), "float32"),
        target_ids: T.Tensor((num_targets,), targets_name),
        rows: T.Tensor((n,), "int64"),
        aligned: T.Tensor((num_targets,), "float32"),
        width: T.int32,
        target_width: T.int32,
    ) -> None:
        with T.Kernel(n, threads=THREADS) as row:
            column, other = T.alloc_var("int32"), T.alloc_var("int32")
            base, wanted = T.alloc_var("int64"), T.alloc_var("int64")
            value = T.alloc_var("float32")
            base = rows[row] * width
            column = T.get_thread_binding()
            while column < target_width:
                wanted = T.cast(target_ids[row * target_width + column], "int64")
                value = -T.infinity("float32")
                other = 0
                while other < width:
                    if T.cast(draft_ids[base + other], "int64") == wanted:
                        value = draft_logprobs[base + other]
                    other = other + 1
                aligned[row * target_width + column] = value
                column = column + THREADS

    return compiled(align_lists, architecture)


def token_logprobs(logprobs: Tensor, token_ids: Tensor) -> Tensor:
    """As the reference, of float32. Rows may lie apart; a row itself may not."""
    check_shape("logprobs", logprobs, ("T", "V"))
    check_shape("token_ids", token_ids, (logprobs.shape[0],))
    check_integers("token_ids", token_ids)
    check_device(logprobs=logprobs, token_ids=token_ids)
    if logprobs.dtype != torch.float32 or logprobs.stride(1) != 1:
        raise ConfigError(
            f"logprobs are {logprobs.dtype} with strides {list(logprobs.stride())}; float32, those of a row next to "
            "each other, is required"
        )
    out = torch.empty(logprobs.shape[0], dtype=torch.float32, device=logprobs.device)
    if logprobs.numel() > 0:
        with torch.cuda.device(out.device):
            entry_kernel(token_ids.dtype)(
                span(logprobs), token_ids.contiguous(), out, logprobs.stride(0), logprobs.shape[1]
            )
    return out


def _find(keys: Tensor, values: Tensor | None, ids: Tensor, rows: Tensor) -> Tensor:
    """First places int32 [n] of ids[rows] in rows of keys [n, K], or with values [n, K] those there."""
    if keys.shape[1] == 0:
        raise ConfigError("keys have no columns; at least 1 is needed")
    n, width = keys.shape
    out = torch.empty(n, dtype=torch.int32 if values is None else torch.float32, device=keys.device)
    if n > 0:
        rest = torch.empty(1, dtype=torch.float32 if values is None else torch.int32, device=keys.device)
        places, found = (out, rest) if values is None else (rest, out)
        given = rest if values is None else values.contiguous().view(-1)
        with torch.cuda.device(keys.device):
            find_kernel((keys.dtype, ids.dtype))(
                keys.contiguous().view(-1),
                given,
                ids.contiguous(),
                rows,
                places,
                found,
                width,
                values is None,
                values is not None,
            )
    return out


def lookup_by_key(keys: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """As the reference, of float32 values."""
    check_shape("keys", keys, ("n", "K"))
    check_shape("values", values, tuple(keys.shape))
    check_shape("wanted", wanted, (keys.shape[0],))
    check_integers("keys", keys)
    check_integers("wanted", wanted)
    check_device(keys=keys, values=values, wanted=wanted)
    if values.dtype != torch.float32:
        raise ConfigError(f"values have dtype {values.dtype}; float32 is required")
    return _find(keys, values, wanted, torch.arange(keys.shape[0], device=keys.device))


def align_draft_topk(
    draft_topk_ids: Tensor,
    draft_topk_logprobs: Tensor,
    draft_ids: Tensor,
    target_topk_ids: Tensor,
    draft_rows: Tensor,
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    check_shape("draft_topk_ids", draft_topk_ids, ("D", "K"))
    check_shape("target_topk_ids", target_topk_ids, ("n", "K"))
    check_shape("draft_topk_logprobs", draft_topk_logprobs, tuple(draft_topk_ids.shape))
    check_shape("draft_ids", draft_ids, (draft_topk_ids.shape[0],))
    check_shape("draft_rows", draft_rows, (target_topk_ids.shape[0],))
    integers = {
        "draft_topk_ids": draft_topk_ids,
        "draft_ids": draft_ids,
        "target_topk_ids": target_topk_ids,
        "draft_rows": draft_rows,
    }
    for name, tensor in integers.items():
        check_integers(name, tensor)
    check_device(draft_topk_logprobs=draft_topk_logprobs, **integers)
    rows = draft_rows.long().contiguous()
    targets = target_topk_ids.contiguous()
    aligned = torch.empty(targets.shape, dtype=torch.float32, device=targets.device)
    if targets.numel() > 0:
        with torch.cuda.device(targets.device):
            align_kernel((draft_topk_ids.dtype, targets.dtype))(
                draft_topk_ids.contiguous().view(-1),
                draft_topk_logprobs.float().contiguous().view(-1),
                targets.view(-1),
                rows,
                aligned.view(-1),
                draft_topk_ids.shape[1],
                targets.shape[1],
            )
    return aligned, _find(targets, None, draft_ids, rows)


IMPLEMENTATIONS = tuple(implementation(function) for function in (token_logprobs, lookup_by_key, align_draft_topk))

_INTS = (torch.int32, torch.int32)
COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "token_logprobs": functools.partial(entry_kernel, torch.int32),
    "find_keys": functools.partial(find_kernel, _INTS),
    "align_lists": functools.partial(align_kernel, _INTS),
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
