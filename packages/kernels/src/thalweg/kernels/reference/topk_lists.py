"""Distributions kept as the K largest entries of each row: ids and log-probabilities, in any order.

Letters: T rows, D rows of drafts, K entries of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape


def align_draft_topk(
    draft_topk_ids: Tensor,
    draft_topk_logprobs: Tensor,
    draft_ids: Tensor,
    target_topk_ids: Tensor,
    draft_rows: Tensor,
) -> tuple[Tensor, Tensor]:
    """Distributions of drafts over K ids of their own, moved to the columns of the target's K ids.

    draft_topk_ids: int [D, K], different within a row, and draft_topk_logprobs: float32 [D, K]. draft_ids: int [D].
    target_topk_ids: int [T, K']. draft_rows: int [T], the row of the draft that each target row judges.
    Returns log-probabilities float32 [T, K'], -inf for ids that the draft's list lacks, and the column int32 [T] of the
    draft's id, -1 where the target's list lacks it: such a draft is refused. What the draft's list lacks stays in the
    residual with the target's full probability.
    """
    check_shape("draft_topk_logprobs", draft_topk_logprobs, tuple(draft_topk_ids.shape))
    check_shape("draft_ids", draft_ids, (draft_topk_ids.shape[0],))
    check_shape("draft_rows", draft_rows, (target_topk_ids.shape[0],))
    keys, order = draft_topk_ids[draft_rows.long()].sort(dim=1)
    wanted = target_topk_ids.type_as(keys).contiguous()
    place = torch.searchsorted(keys, wanted).clamp(max=keys.shape[1] - 1)
    values = draft_topk_logprobs[draft_rows.long()].gather(1, order.gather(1, place))
    aligned = torch.where(keys.gather(1, place) == wanted, values, -torch.inf)
    return aligned, _find(target_topk_ids, draft_ids[draft_rows.long()])


def lookup_by_key(keys: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """The value float32 [T] that stands where each row's key is the wanted one; -inf where the row has no such key.

    keys: int [T, K]; of equal ones the first counts. values: float32 [T, K]. wanted: int [T].
    """
    check_shape("values", values, tuple(keys.shape))
    place = _find(keys, wanted)
    found = values.gather(1, place.clamp(min=0).long()[:, None]).squeeze(1)
    return torch.where(place >= 0, found, -torch.inf)


def _find(keys: Tensor, wanted: Tensor) -> Tensor:
    """First place int32 [T] of wanted int [T] in each row of keys int [T, K], -1 where it is not."""
    check_shape("wanted", wanted, (keys.shape[0],))
    if keys.shape[1] == 0:
        raise ConfigError("keys have no columns; at least 1 is needed")
    is_match = keys == wanted[:, None]
    return torch.where(is_match.any(1), is_match.to(torch.int8).argmax(1), -1).int()


OPS: dict[str, Callable[..., Any]] = {"align_draft_topk": align_draft_topk, "lookup_by_key": lookup_by_key}
