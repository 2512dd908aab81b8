"""What a step says about every sequence, once its drafts are judged.

Letters: N sequences, S sampled rows, X siblings, G draft length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.engine.row_faults import RowFaults
from thalweg.kernels import Verification


@dataclass(frozen=True, slots=True)
class RowVerdicts:
    """How the drafts that rows judge fared."""

    accept_probs: torch.Tensor
    """float32 [S] of the draft that a row judges, NaN where it judges none."""
    draft_logprobs: torch.Tensor
    """float32 [S] log-probability with which the accepted draft of a row was proposed, NaN where none was accepted."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Tokens by sequence and by row."""

    token_ids: torch.Tensor
    """int32 [N] newest token."""
    faults: RowFaults
    """[N+X] outputs whose newest token is meaningless."""
    num_accepted: torch.Tensor
    """int32 [N]"""
    accepted_ids: torch.Tensor
    """int32 [N, G] accepted drafts, then -1."""
    row_token_ids: torch.Tensor
    """int32 [S+X] of each row, then of the siblings; rows after a refused draft are void."""
    accept_probs: torch.Tensor | None = None
    """float32 [N, G] of each draft, NaN where none was verified; None for a step without drafts."""
    verdicts: RowVerdicts | None = None
    """None for a step without drafts, and where nobody asked."""


def without_drafts(row_token_ids: torch.Tensor, faults: RowFaults, num_sequences: int) -> Verified:
    """One token int32 [N+X] per sequence and sibling. faults: [N+X]."""
    token_ids = row_token_ids[:num_sequences]
    nothing = token_ids.new_empty((num_sequences, 0))
    return Verified(token_ids, faults, torch.zeros_like(token_ids), nothing, row_token_ids)


def of_verification(
    verification: Verification, faults: RowFaults, query_lengths: torch.Tensor, verdicts: RowVerdicts | None
) -> Verified:
    """What the verdicts on rows say about sequences. faults: [S]. query_lengths: int [N]."""
    lengths = query_lengths.long()[:, None]
    places = torch.arange(verification.accepted_ids.shape[1], device=lengths.device)
    is_verified = places < lengths - 1
    rows = torch.where(is_verified, lengths.cumsum(0) - lengths + places, 0)
    return Verified(
        token_ids=verification.token_ids[verification.last_rows],
        faults=faults.at(verification.last_rows),
        num_accepted=verification.num_accepted,
        accepted_ids=verification.accepted_ids,
        row_token_ids=verification.token_ids,
        accept_probs=torch.where(is_verified, verification.accept_probs[rows], torch.nan),
        verdicts=verdicts,
    )


def verdicts_of_rows(
    verification: Verification, query_lengths: torch.Tensor, sequence_rows: torch.Tensor
) -> RowVerdicts:
    """Verdicts by row. query_lengths: int [N]. sequence_rows: int64 [S] the sequence of each row."""
    lengths = query_lengths.long()
    first = lengths.cumsum(0) - lengths
    places = torch.arange(sequence_rows.shape[0], device=lengths.device) - first[sequence_rows]
    judges = places < lengths[sequence_rows] - 1
    is_accepted = places < verification.num_accepted[sequence_rows]
    return RowVerdicts(
        torch.where(judges, verification.accept_probs, torch.nan),
        torch.where(is_accepted, verification.draft_logprobs, torch.nan),
    )
