"""What a step reports about the rows it sampled, beyond their tokens; on the host.

Letters: N sequences of the plan, X siblings (see `SequenceToSample`), R reported rows, K alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log-probabilities of tokens, those of one sequence after the other. -inf is possible."""

    offsets: NDArray[np.int64]
    """[N+X+1] sequence i has rows offsets[i]:offsets[i+1], in the order of their tokens; none if nobody asked. Rows
    after the sequence's newest token mean nothing."""
    token_ids: NDArray[np.int32]
    """[R]"""
    logprobs: NDArray[np.float32]
    """[R] of those tokens."""
    top_ids: NDArray[np.int32]
    """[R, K] the most likely tokens, from the most likely on, the lower id first among equals."""
    top_logprobs: NDArray[np.float32]
    """[R, K]"""


@dataclass(frozen=True, slots=True)
class RowDraws:
    """How the tokens were drawn; rows as in `RowLogprobs`, for every sequence."""

    offsets: NDArray[np.int64]
    """[N+X+1]"""
    sum_smaller_probs: NDArray[np.float32]
    """[R] mass of the tokens that were less likely, or as likely with no higher id, the token itself included."""
    draft_logprobs: NDArray[np.float32]
    """[R] log-probability with which an accepted draft was proposed; NaN for every other token."""
    accept_probs: NDArray[np.float32]
    """[R] probability that a draft in this row is accepted; NaN where none was judged."""
