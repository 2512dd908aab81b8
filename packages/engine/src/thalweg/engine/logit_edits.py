"""Which logits a step changes before anything is drawn: tokens that are forbidden, and tokens that are shifted.

Letters: S sampled rows, F forbidden pairs, B shifted ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.step_rows import StepRows


def _no_integers() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """(row, token id) pairs. The forbidden ones may repeat, the shifted ones are all different."""

    forbidden_rows: NDArray[np.int64]
    """[F]"""
    forbidden_ids: NDArray[np.int64]
    """[F]"""
    bias_rows: NDArray[np.int64]
    """[B]"""
    bias_ids: NDArray[np.int64]
    """[B]"""
    biases: NDArray[np.float32]
    """[B]"""

    @staticmethod
    def none() -> LogitEdits:
        return LogitEdits(_no_integers(), _no_integers(), _no_integers(), _no_integers(), np.zeros(0, np.float32))


def build_logit_edits(step: StepRows) -> LogitEdits:
    """What the requests of a step ask for: `min_tokens`, `bad_words` and `logit_bias`."""
    forbidden = [*_endings(step), *_bad_words(step)]
    bias_rows, bias_ids, biases = [_no_integers()], [_no_integers()], [np.zeros(0, np.float32)]
    for index in step.with_option("has_biases"):
        rows, row = step.rows_of(index), step.sequences[index].row
        bias_rows.append(np.repeat(rows, row.bias_ids.size))
        bias_ids.append(np.tile(row.bias_ids, rows.size))
        biases.append(np.tile(row.biases, rows.size))
    return LogitEdits(
        np.concatenate([_no_integers(), *(rows for rows, _ in forbidden)]),
        np.concatenate([_no_integers(), *(ids for _, ids in forbidden)]),
        np.concatenate(bias_rows),
        np.concatenate(bias_ids),
        np.concatenate(biases),
    )


def _endings(step: StepRows) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Tokens that end an output which may not end yet: row j makes output token `num_outputs + j`."""
    num_protected = np.minimum(step.num_rows, step.parameters["min_tokens"] - step.num_outputs)
    for index in np.flatnonzero((num_protected > 0) & step.makes_output).tolist():
        rows, ids = step.rows_of(index)[: num_protected[index]], step.sequences[index].row.forbidden_ids
        yield np.repeat(rows, ids.size), np.tile(ids, rows.size)


def _bad_words(step: StepRows) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    for index in step.with_option("has_bad_words"):
        sequence, num_rows = step.sequences[index], int(step.num_rows[index])
        words = sequence.row.bad_word_table
        output = sequence.output_token_ids
        past = np.array(output[max(0, len(output) - words.look_back) :], np.int64)
        places, ids = words.pairs(past, step.drafts[index].astype(np.int64), num_rows)
        yield step.first_rows[index] + places, ids
