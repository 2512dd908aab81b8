"""Plans of single steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.engine.inputs import PLACEHOLDER_SEQUENCE
from thalweg.interfaces import StepKind, StepPlan, StepStats


def make_plan(kind: StepKind, sequences: list[dict[str, Any]], look_back: int, draft_length: int = 0) -> StepPlan:
    """The plan that a scheduler would make of sequences.

    Each is a dictionary: `tokens` so far, `prompt` of them if not all, `q` and `k` query and context length, `blocks`,
    `state` slot, `drafts`, and draft slots `rslot` and `wslot`.
    """
    is_prefill = kind is StepKind.PREFILL
    query = np.array([sequence["q"] for sequence in sequences], np.int32)
    context = np.array([sequence["k"] for sequence in sequences], np.int32)
    committed = np.array([len(sequence["tokens"]) for sequence in sequences], np.int32)
    tails, chunks, following = [], [], []
    for sequence, start, end in zip(sequences, (context - query).tolist(), context.tolist(), strict=True):
        tokens = sequence["tokens"]
        last = start if is_prefill else len(tokens) - 1
        tails.append([tokens[p] if p >= 0 else -1 for p in range(last - look_back + 1, last + 1)])
        chunks += tokens[start:end]
        following.append(tokens[end] if end < len(tokens) else -1)
    num_rows = len(sequences)
    blocks = [sequence["blocks"] for sequence in sequences]
    drafts = [[] if is_prefill else sequence.get("drafts", [])[:draft_length] for sequence in sequences]
    no_rows, no_ids = np.zeros(num_rows, np.int32), np.zeros(0, np.int64)
    return StepPlan(
        step=0,
        kind=kind,
        num_batched_tokens=int(query.sum()),
        sequence_ids=np.array(
            [
                PLACEHOLDER_SEQUENCE if sequence.get("rid") == "placeholder" else i
                for i, sequence in enumerate(sequences)
            ]
        ),
        query_lengths=query,
        context_lengths=context,
        committed_lengths=committed,
        prompt_lengths=np.array([sequence.get("prompt", len(sequence["tokens"])) for sequence in sequences], np.int32),
        block_offsets=np.cumsum([0, *map(len, blocks)]).astype(np.int32),
        block_ids=np.concatenate(blocks).astype(np.int32),
        state_slots=np.array([sequence["state"] for sequence in sequences], np.int32),
        window_valid_start=no_rows,
        tail_token_ids=np.array(tails, np.int32),
        token_ids=np.array(chunks if is_prefill else [], np.int32),
        next_token_ids=np.array(following if is_prefill else [], np.int32),
        draft_token_ids=np.array(drafts, np.int32).reshape(num_rows, -1),
        draft_read_slots=np.array([sequence.get("rslot", 0) for sequence in sequences], np.int32),
        draft_write_slots=np.array([sequence.get("wslot", 0) for sequence in sequences], np.int32),
        previous_rows=no_rows - 1,
        state_copies=np.zeros((0, 2), np.int32),
        block_copies=np.zeros((0, 2), np.int32),
        zero_state_slots=np.zeros(0, np.int32),
        finished_ids=no_ids,
        dropped_ids=no_ids,
        restarted_ids=no_ids,
        stats=StepStats(0, 0, 0, 0.0, 0.0, *[0] * 15),
    )
