"""What a step says about every sequence, once its drafts are judged.

Letters: N sequences, S sampled rows, X siblings, G draft length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.engine.row_faults import RowFaults
from thalweg.kernels import Verification


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
    row_accept_probs: torch.Tensor | None = None
    """float32 [S] of the draft that a row judges, NaN where it judges none; None for a step without drafts."""
    row_draft_logprobs: torch.Tensor | None = None
    """float32 [S] log-probability with which the accepted draft of a row was proposed, NaN where none was accepted;
    None for a step without drafts."""


def without_drafts(row_token_ids: torch.Tensor, faults: RowFaults, num_sequences: int) -> Verified:
    """One token int32 [N+X] per sequence and sibling. faults: [N+X]."""
    token_ids = row_token_ids[:num_sequences]
    nothing = token_ids.new_empty((num_sequences, 0))
    return Verified(token_ids, faults, torch.zeros_like(token_ids), nothing, row_token_ids)


def of_verification(
    verification: Verification, faults: RowFaults, query_lengths: torch.Tensor, sequence_rows: torch.Tensor
) -> Verified:
    """What the verdicts on rows say about sequences.

    faults: [S]. query_lengths: int [N]. sequence_rows: int [S] the sequence of each row.
    """
    lengths = query_lengths.long()[:, None]
    first = lengths.cumsum(0) - lengths
    places = torch.arange(verification.accepted_ids.shape[1], device=lengths.device)
    is_verified = places < lengths - 1
    rows = torch.where(is_verified, first + places, 0)
    sequences = sequence_rows.long()
    row_places = torch.arange(sequences.shape[0], device=lengths.device) - first.squeeze(1)[sequences]
    judges = row_places < lengths.squeeze(1)[sequences] - 1
    is_accepted = row_places < verification.num_accepted[sequences]
    return Verified(
        token_ids=verification.token_ids[verification.last_rows],
        faults=faults.at(verification.last_rows),
        num_accepted=verification.num_accepted,
        accepted_ids=verification.accepted_ids,
        row_token_ids=verification.token_ids,
        accept_probs=torch.where(is_verified, verification.accept_probs[rows], torch.nan),
        row_accept_probs=torch.where(judges, verification.accept_probs, torch.nan),
        row_draft_logprobs=torch.where(is_accepted, verification.draft_logprobs, torch.nan),
    )
