"""Which rows of a prefill tell how likely the tokens of its prompts were.

Letters: N sequences, P prompt tokens looked at, K alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Query tokens of a step whose logits say how likely the next token of their prompt was."""

    rows: NDArray[np.int64]
    """[P] ascending."""
    token_ids: NDArray[np.int32]
    """[P] the prompt's next token."""
    sequences: NDArray[np.int64]
    """[P]"""
    offsets: NDArray[np.int64]
    """[N+1] those of sequence i are offsets[i]:offsets[i+1]."""
    count: int
    """K"""


def build_prompt_rows(step: StepRows) -> PromptRows | None:
    """The tokens that nobody has reported yet, of the prompts that are asked about; None if there are none."""
    if not step.is_prefill:
        return None
    wanted = step.parameters["num_prompt_logprobs"]
    first_query_rows = np.cumsum(step.query_lengths) - step.query_lengths
    starts = step.context_lengths - step.query_lengths
    counts = np.zeros(step.num_rows.size, np.int64)
    rows, token_ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for index in np.flatnonzero(wanted >= 0).tolist():
        sequence, start = step.sequences[index], int(starts[index])
        first = 1 + max(start, sequence.num_prompt_logprobs_known)
        end = min(1 + int(step.context_lengths[index]), int(step.prompt_lengths[index]))
        if first < end:
            counts[index] = end - first
            rows.append(first_query_rows[index] + np.arange(first, end) - 1 - start)
            token_ids.append(np.array(sequence.prompt_token_ids[first:end], np.int32))
    if not counts.any():
        return None
    return PromptRows(
        np.concatenate(rows),
        np.concatenate(token_ids),
        np.repeat(np.arange(counts.size), counts),
        np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        int(wanted[counts > 0].max()),
    )
