"""What a drafter hands over is put right here, on the device: whatever it proposes, a step can verify it.

Letters: N sequences, G draft length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CheckedDrafts:
    """Drafts that a step can verify."""

    token_ids: torch.Tensor
    """int32 [N, G] valid ids."""
    confidences: torch.Tensor
    """float32 [N, G] from 0 to 1."""
    is_certain: torch.Tensor
    """bool [N, G] drafts that nobody drew: each stands for a distribution that holds nothing else."""
    faults: torch.Tensor
    """int32 [2] ids that could not be used, confidences outside 0..1."""


def check_drafts(
    token_ids: torch.Tensor,
    confidences: torch.Tensor,
    drawn: Sequence[torch.Tensor],
    shape: tuple[int, int],
    vocab_size: int,
) -> CheckedDrafts:
    """Put the proposals of a drafter right, on the device.

    token_ids: int [N, G]. confidences: float [N, G]. drawn: int32 [N] per place, what the sampler drew, for as many
    places as it was asked. shape: (N, G).

    At those places the drafts are what was drawn, whatever was proposed: if some of them were replaced by others, and
    some by the same token, those left would not follow the distribution that they are judged by. Their confidences
    stay, or they would tell what was drawn. Elsewhere an id outside the vocabulary becomes the last one, with
    confidence 0. A confidence outside 0..1, or that is not a number, becomes 0.

    Raises ValueError for tensors of another shape or kind.
    """
    _check_tensors(token_ids, confidences, shape)
    is_illegal = (token_ids < 0) | (token_ids >= vocab_size)
    ids = torch.where(is_illegal, vocab_size - 1, token_ids).int()
    is_unusable, is_certain = is_illegal, torch.ones_like(is_illegal)
    if drawn:
        drawn_ids = torch.stack(tuple(drawn), 1)
        of_drawn = slice(0, len(drawn))
        is_unusable = is_illegal.clone()
        is_unusable[:, of_drawn] = token_ids[:, of_drawn] != drawn_ids
        ids[:, of_drawn] = drawn_ids
        is_certain[:, of_drawn] = False
    values = confidences.float()
    is_bad = ~((values >= 0) & (values <= 1))
    return CheckedDrafts(
        ids,
        values.masked_fill(is_bad | (is_illegal & is_certain), 0.0),
        is_certain,
        torch.stack((is_unusable.sum(), is_bad.sum())).int(),
    )


def _check_tensors(token_ids: torch.Tensor, confidences: torch.Tensor, shape: tuple[int, int]) -> None:
    for name, tensor in (("draft ids", token_ids), ("confidences", confidences)):
        if tensor.shape != shape:
            raise ValueError(f"the drafter's {name} have shape {list(tensor.shape)}; {list(shape)} is needed")
    if token_ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"the drafter's draft ids have dtype {token_ids.dtype}; int32 or int64 is needed")
    if not confidences.dtype.is_floating_point:
        raise ValueError(f"the drafter's confidences have dtype {confidences.dtype}; a floating-point one is needed")
