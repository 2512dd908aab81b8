"""What the options of requests come to in the rows of a step, worked out on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from engine_testing.plans import make_plan

from thalweg.engine.sampler_inputs import SamplerInputs, build_sampler_inputs
from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.engine.token_counts import SlotOwners
from thalweg.interfaces import StepKind

PROMPT = [3, 4, 5]


def decode(
    rows: list[SamplingRow],
    outputs: list[list[int]],
    drafts: list[list[int]],
    *,
    keys: list[int] | None = None,
    owners: SlotOwners | None = None,
) -> SamplerInputs:
    """Inputs of a decode step of sequences that verify these drafts."""
    width = max(map(len, drafts))
    planned: list[dict[str, Any]] = [
        {
            "tokens": PROMPT + output,
            "prompt": len(PROMPT),
            "q": 1 + len(own),
            "k": len(PROMPT + output) + len(own),
            "blocks": [1],
            "state": 2 + index,
            "drafts": own + [-1] * (width - len(own)),
        }
        for index, (output, own) in enumerate(zip(outputs, drafts, strict=True))
    ]
    keys = list(range(len(rows))) if keys is None else keys
    sequences = [
        SequenceToSample(row, key, PROMPT, output) for row, key, output in zip(rows, keys, outputs, strict=True)
    ]
    return build_sampler_inputs(make_plan(StepKind.DECODE, planned, 1, width), sequences, owners=owners)


def prefill(
    sequences: list[SequenceToSample], chunks: list[tuple[int, int]], owners: SlotOwners | None = None
) -> SamplerInputs:
    """Inputs of a prefill; chunks: query and context length of each."""
    planned = [
        {
            "tokens": [*sequence.prompt_token_ids, *sequence.output_token_ids],
            "prompt": len(sequence.prompt_token_ids),
            "q": query,
            "k": context,
            "blocks": [1],
            "state": 2 + index,
        }
        for index, (sequence, (query, context)) in enumerate(zip(sequences, chunks, strict=True))
    ]
    return build_sampler_inputs(make_plan(StepKind.PREFILL, planned, 1), sequences, owners=owners)


def pairs(rows: Any, ids: Any) -> list[tuple[int, int]]:
    return sorted(zip(rows.tolist(), ids.tolist(), strict=True))


PLAIN = SamplingRow(temperature=1.0)
PENALISED = SamplingRow(temperature=1.0, repetition_penalty=1.25, presence_penalty=0.5, frequency_penalty=-0.5)


def test_bad_words_are_found_across_the_drafts_of_a_step() -> None:
    row = SamplingRow(bad_words=((9,), (6, 7), (6, 7, 8), (4, 5, 1)))
    inputs = decode([PLAIN, row], [[6], [7, 6]], [[1, 2], [7, 8]])
    # Rows 3, 4 and 5 follow 7 6, 7 6 7 and 7 6 7 8; the prompt does not count.
    expected = [(3, 7), (3, 9), (4, 8), (4, 9), (5, 9)]
    assert pairs(inputs.edits.forbidden_rows, inputs.edits.forbidden_ids) == expected
    assert not decode([PLAIN], [[6]], [[1]]).edits.forbidden_rows.size


def test_biases_hold_in_every_row_of_their_sequence() -> None:
    row = SamplingRow(bias_ids=np.array([5, 2]), biases=np.array([1.5, -2.0], np.float32))
    edits = decode([PLAIN, row], [[6], [7]], [[1], [8]]).edits
    assert pairs(edits.bias_rows, edits.bias_ids) == [(2, 2), (2, 5), (3, 2), (3, 5)]
    assert edits.biases[edits.bias_ids == 5].tolist() == [1.5, 1.5]


def test_forced_tokens_follow_the_output_and_run_out() -> None:
    row = SamplingRow(forced_ids=np.array([1, 2, -1, 4], np.int32))
    forced = decode(
        [PLAIN, row, row, row], [[9], [1], [1, 2], [1, 2, 0, 4, 5]], [[7, 7], [8, 8], [8, 8], []]
    ).forced_ids
    assert forced is not None
    assert forced.tolist() == [-1, -1, -1, 2, -1, 4, -1, 4, -1, -1]
    assert decode([PLAIN], [[9]], [[7]]).forced_ids is None


def test_penalties_know_the_drafts_before_a_row() -> None:
    rows = decode([PLAIN, PENALISED, PENALISED], [[9], [1], [1, 2]], [[7, 7], [8, 6], [8]]).penalties
    assert rows is not None
    assert rows.rows.tolist() == [3, 4, 5, 6, 7]
    assert rows.slots.tolist() == [3, 3, 3, 4, 4]
    assert rows.step_ids.tolist() == [[-1, -1], [8, -1], [8, 6], [-1, -1], [8, -1]]
    assert (rows.repetition.tolist(), rows.presence.tolist()) == ([1.25] * 5, [0.5] * 5)
    assert rows.frequency.tolist() == [-0.5] * 5
    assert rows.count_slots.tolist() == [0, 3, 4]
    assert rows.reset_slots.tolist() == [3, 4]
    assert (rows.prompt_ids.tolist(), rows.prompt_rows.tolist()) == (PROMPT * 2, [0, 0, 0, 1, 1, 1])
    assert (rows.output_ids.tolist(), rows.output_rows.tolist()) == ([1, 1, 2], [0, 1, 1])
    assert decode([PLAIN], [[9]], [[7]]).penalties is None


def test_counts_stay_while_a_slot_keeps_its_owner() -> None:
    owners = SlotOwners()

    def reset(keys: list[int]) -> list[int]:
        rows = decode([PENALISED] * 2, [[1], [2]], [[], []], keys=keys, owners=owners).penalties
        assert rows is not None
        return rows.reset_slots.tolist()

    assert reset([10, 11]) == [2, 3]
    assert reset([10, 11]) == []
    assert reset([12, 11]) == [2]
    assert reset([10, 12]) == [2, 3]
    assert reset([-1, -1]) == reset([-1, -1]) == [2, 3]
    again = prefill([SequenceToSample(PENALISED, 12, PROMPT, [1, 2])], [(5, 5)], owners).penalties
    assert again is not None
    assert again.reset_slots.tolist() == [2]
    assert again.output_ids.tolist() == [1, 2]


def test_chunks_that_do_not_end_their_prompt_ask_for_nothing() -> None:
    row = SamplingRow(
        repetition_penalty=2.0,
        bad_words=((9,),),
        bias_ids=np.array([1]),
        biases=np.ones(1, np.float32),
        forced_ids=np.array([1], np.int32),
        min_tokens=2,
        forbidden_ids=np.array([1]),
        num_logprobs=3,
    )
    sibling = SequenceToSample(row, 8)
    inputs = prefill([SequenceToSample(row, 7, PROMPT, siblings=(sibling,))], [(2, 2)])
    assert inputs.penalties is None
    assert inputs.forced_ids is None
    assert not inputs.edits.forbidden_rows.size + inputs.edits.bias_rows.size + inputs.siblings.parents.size
    assert inputs.num_logprobs.tolist() == [-1]
    ended = prefill([SequenceToSample(row, 7, PROMPT, siblings=(sibling,))], [(1, 3)])
    assert ended.penalties is not None
    assert ended.forced_ids is not None
    assert pairs(ended.edits.forbidden_rows, ended.edits.forbidden_ids) == [(0, 1), (0, 9)]
    assert (ended.siblings.parents.tolist(), ended.num_logprobs.tolist()) == ([0], [3])


def test_prompt_tokens_are_looked_at_once_over_chunks_and_restarts() -> None:
    row, prompt = SamplingRow(num_prompt_logprobs=2), [10, 11, 12, 13, 14, 15]

    def looked_at(query: int, context: int, known: int, outputs: tuple[int, ...] = ()) -> list[tuple[int, int]]:
        sequence = SequenceToSample(row, 1, prompt, outputs, num_prompt_logprobs_known=known)
        other = SequenceToSample(PLAIN, 2, prompt)
        found = prefill([other, sequence, other], [(6, 6), (query, context), (1, 3)]).prompt
        if found is None:
            return []
        assert found.offsets.tolist() == [0, 0, found.rows.size, found.rows.size]
        assert (found.sequences == 1).all()
        return pairs(found.rows - 6, found.token_ids)

    assert looked_at(2, 2, 0) == [(0, 11), (1, 12)]
    assert looked_at(3, 5, 2) == [(0, 13), (1, 14), (2, 15)]
    assert looked_at(1, 6, 5) == []
    assert looked_at(6, 6, 0) == [(place, 11 + place) for place in range(5)]
    assert looked_at(8, 8, 5, (20, 21)) == []
    assert looked_at(8, 8, 3, (20, 21)) == [(3, 14), (4, 15)]
