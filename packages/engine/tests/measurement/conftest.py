"""Steps as the engine would report them, with only the numbers that a test is about."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import StepKind, StepOutcome, StepPlan, StepStats

MakeRecord = Callable[..., StepRecord]


def build_record(
    step: int,
    kind: StepKind = StepKind.DECODE,
    *,
    query_lengths: Sequence[int] = (1,),
    num_tokens: Sequence[int] | None = None,
    accepted: Sequence[int] | None = None,
    sequence_ids: Sequence[int] | None = None,
    finish_reasons: Sequence[int] | None = None,
    finished_ids: Sequence[int] = (),
    stats: dict[str, Any] | None = None,
    forward_ms: float = 0.0,
    sampler_ms: float = 0.0,
    step_ms: float = 1.0,
    confidences: Sequence[Sequence[float]] = ((),),
    accept_probs: Sequence[Sequence[float]] | None = None,
    **measured: Any,
) -> StepRecord:
    """num_tokens: per row; without it, what a decode row accepted, and one token of a prefill row.

    confidences, accept_probs: per row and draft.
    """
    rows = len(query_lengths)
    accepted = [1] * rows if accepted is None else accepted
    num_tokens = list(accepted) if num_tokens is None else num_tokens
    none, ids = np.zeros(0, np.int32), np.arange(rows) if sequence_ids is None else np.array(sequence_ids)
    offsets = np.concatenate([[0], np.cumsum(num_tokens)]).astype(np.int32)
    is_decode = kind is StepKind.DECODE
    verified = [length if tokens and is_decode else 0 for length, tokens in zip(query_lengths, num_tokens, strict=True)]
    zeros = dict.fromkeys(StepStats.__match_args__, 0)
    lengths = np.array(query_lengths, np.int32)
    plan = StepPlan(
        **{name: none for name in StepPlan.__match_args__}
        | {
            "step": step,
            "kind": kind,
            "num_batched_tokens": int(lengths.sum()),
            "sequence_ids": ids.astype(np.int64),
            "query_lengths": lengths,
            "finished_ids": np.array(finished_ids, np.int64),
            "stats": StepStats(**(zeros | (stats or {}))),
        }
    )
    outcome = StepOutcome(
        **{name: none for name in StepOutcome.__match_args__}
        | {
            "token_offsets": offsets,
            "token_ids": np.zeros(offsets[-1], np.int32),
            "finish_reasons": np.array([0] * rows if finish_reasons is None else finish_reasons, np.int8),
            "num_verified": np.array(verified, np.int32),
            "num_accepted": np.array(accepted if is_decode else [0] * rows, np.int32),
            "verified_confidences": np.array(confidences, np.float32),
        }
    )
    times = {"forward_ms": forward_ms, "sampler_ms": sampler_ms, "step_ms": step_ms}
    if accept_probs is not None:
        measured["accept_probs"] = np.array(accept_probs, np.float32)
    measured.setdefault("num_output_tokens", int(offsets[-1]))
    return StepRecord(plan=plan, outcome=outcome, **times, **measured)


@pytest.fixture(scope="session")
def make_record() -> MakeRecord:
    return build_record
