"""What grammars allow in the rows of a step, worked out on the host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.matchers import FunctionMatcher, Grammar, PlainFiller
from engine_testing.plans import make_plan
from hypothesis import given
from hypothesis import strategies as st

from thalweg.engine.constraint import Constraint
from thalweg.engine.grammar_masks import BuiltMasks, GrammarMaskBuilder
from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.engine.step_rows import StepRows
from thalweg.interfaces import DraftWalk, FilledMasks, InvariantError, StepKind
from thalweg.kernels.backends.cpu import CpuBackend

VOCAB, EOS = 40, 39
PROMPT = [3, 4, 5]


def ascending(tokens: tuple[int, ...]) -> set[int]:
    """Each token is followed by one of the next two; the end may come after an even one."""
    last = tokens[-1] if tokens else 0
    return {last + 1, last + 2} | ({EOS} if tokens and last % 2 == 0 else set())


def after_a_9(tokens: tuple[int, ...]) -> set[int] | None:
    """Free until a 9 has come, then only 1."""
    return {1} if 9 in tokens else None


def sequence(grammar: Grammar | None, token_ids: Sequence[int] = (), num_seen: int = 0) -> SequenceToSample:
    """An output whose matcher has accepted some of its tokens."""
    constraint = None
    if grammar is not None:
        matcher = FunctionMatcher(grammar, EOS)
        assert all(matcher.accept(token_id) for token_id in token_ids[:num_seen])
        constraint = Constraint(matcher, num_seen)
    return SequenceToSample(SamplingRow(), 0, PROMPT, list(token_ids), constraint=constraint)


def matcher_of(sequence: SequenceToSample) -> FunctionMatcher:
    assert sequence.constraint is not None
    assert isinstance(sequence.constraint.matcher, FunctionMatcher)
    return sequence.constraint.matcher


def decode(sequences: Sequence[SequenceToSample], drafts: Sequence[list[int]]) -> StepRows:
    width = max(map(len, drafts))
    planned: list[dict[str, Any]] = [
        {
            "tokens": [*PROMPT, *each.output_token_ids],
            "prompt": len(PROMPT),
            "q": 1 + len(own),
            "k": len(PROMPT) + len(each.output_token_ids) + len(own),
            "blocks": [1],
            "state": 2 + index,
            "drafts": own + [-1] * (width - len(own)),
        }
        for index, (each, own) in enumerate(zip(sequences, drafts, strict=True))
    ]
    return StepRows.of(make_plan(StepKind.DECODE, planned, 1, width), sequences, None)


def prefill(sequences: Sequence[SequenceToSample], contexts: Sequence[int]) -> StepRows:
    planned: list[dict[str, Any]] = [
        {"tokens": [*PROMPT, *each.output_token_ids], "q": context, "k": context, "blocks": [1], "state": 2 + index}
        for index, (each, context) in enumerate(zip(sequences, contexts, strict=True))
    ]
    return StepRows.of(make_plan(StepKind.PREFILL, planned, 1), sequences, None)


def build(step: StepRows, forced: Sequence[int] | None = None) -> BuiltMasks:
    builder = GrammarMaskBuilder(CpuBackend(), PlainFiller(), VOCAB)
    return builder.build(step, None if forced is None else np.array(forced, np.int32))


def allowed(built: BuiltMasks) -> dict[int, set[int]]:
    """Row of logits -> tokens that its mask allows."""
    if built.masks is None:
        return {}
    bits = np.unpackbits(built.masks.bitmask.numpy().view(np.uint8), axis=1, bitorder="little")
    rows = built.masks.rows.tolist()
    return {row: set(np.flatnonzero(bits[place]).tolist()) for place, row in enumerate(rows) if row >= 0}


def test_every_row_of_a_decode_step_is_masked_up_to_the_first_draft_that_is_not_allowed() -> None:
    sequences = [sequence(ascending, [1, 2]), sequence(None, [7]), sequence(ascending, [2]), sequence(ascending, [1])]
    built = build(decode(sequences, [[3, 5], [8, 8], [3, 1], []]))
    assert allowed(built) == {
        **{0: {3, 4, EOS}, 1: {4, 5}, 2: {6, 7}},
        **{6: {3, 4, EOS}, 7: {4, 5}},  # row 8 follows a draft that is refused in row 7
        9: {2, 3},
    }
    assert not built.failures
    assert matcher_of(sequences[0]).token_ids == [1, 2]


def test_only_the_end_of_a_prompt_is_masked() -> None:
    chunk, end = sequence(ascending), sequence(ascending)
    again = sequence(ascending, [1, 2, 3], num_seen=2)  # preempted, and its tokens are computed once more
    step = prefill([chunk, end, again, sequence(None)], [2, 3, 6, 3])
    assert allowed(build(step)) == {1: {1, 2}, 2: {4, 5}}
    assert matcher_of(chunk).token_ids == []
    assert matcher_of(again).token_ids == [1, 2, 3]


def test_a_matcher_sees_every_committed_token_once() -> None:
    output = sequence(ascending, [1, 2])
    assert output.constraint is not None
    for tokens, drafts in ([1, 2], [3, 4]), ([1, 2, 3, 4, 6], [9]), ([1, 2, 3, 4, 6], []):
        output.output_token_ids[:] = tokens  # type: ignore[index]
        build(decode([output], [drafts]))
        assert matcher_of(output).token_ids == tokens
        assert output.constraint.num_seen == len(tokens)


def test_free_rows_turn_masked_within_a_step_and_free_again_behind_the_end() -> None:
    thinks, ends = sequence(after_a_9, [2]), sequence(ascending, [1, 2])
    built = build(decode([thinks, ends], [[9, 1], [EOS, 7]]))
    assert allowed(built) == {1: {1}, 2: {1}, 3: {3, 4, EOS}}
    assert build(decode([sequence(after_a_9, [2])], [[3, 4]])).masks is None
    assert build(decode([sequence(ascending, [2, EOS, 17])], [[3]])).masks is None


def test_an_output_that_left_its_grammar_fails_alone() -> None:
    lost = sequence(ascending, [1, 2, 20], num_seen=1)
    built = build(decode([sequence(ascending, [1]), lost, sequence(ascending, [2])], [[2], [21], [3]]))
    assert built.failures == {1: "token 20 is not allowed by the grammar"}
    assert allowed(built) == {0: {2, 3}, 1: {3, 4, EOS}, 4: {3, 4, EOS}, 5: {4, 5}}
    assert lost.constraint is not None
    assert lost.constraint.num_seen == 1


def test_failures_name_the_row_of_the_plan_not_the_walk() -> None:
    lost = sequence(ascending, [20])
    built = build(decode([sequence(None, [1]), sequence(ascending, [1]), lost], [[], [], []]))
    assert list(built.failures) == [2]
    assert allowed(built) == {1: {2, 3}}


def test_a_forced_token_that_the_grammar_forbids_leaves_nothing() -> None:
    sequences = [sequence(ascending, [1]), sequence(None, [1]), sequence(after_a_9, [1])]
    forced = [2, 30, -1] + [30] * 3 + [30, 30, 1]
    built = build(decode(sequences, [[2, 3], [2, 3], [30, 9]]), forced)
    assert allowed(built) == {0: {2, 3}, 1: set(), 2: {4, 5}, 8: {1}}


def test_grammars_without_a_filler_are_our_bug() -> None:
    builder = GrammarMaskBuilder(CpuBackend(), None, VOCAB)
    assert builder.build(decode([sequence(None, [1])], [[]])) == BuiltMasks(None, {})
    with pytest.raises(InvariantError, match="nothing that fills masks"):
        builder.build(decode([sequence(ascending, [1])], [[]]))


def test_the_buffer_is_pinned_kept_and_grown() -> None:
    asked: list[tuple[Any, Any, bool]] = []

    class WatchedBackend(CpuBackend):
        def empty(self, shape: Sequence[int], dtype: torch.dtype, *, pinned: bool = False) -> torch.Tensor:
            asked.append((tuple(shape), dtype, pinned))
            return super().empty(shape, dtype, pinned=pinned)

    builder = GrammarMaskBuilder(WatchedBackend(), PlainFiller(), VOCAB)
    places = []
    for count in (5, 8, 3, 9, 4):
        built = builder.build(decode([sequence(ascending, [1])] * count, [[]] * count))
        assert built.masks is not None
        assert built.masks.bitmask.shape == (count, 2)
        places.append(built.masks.bitmask.data_ptr())
    assert asked == [((8, 2), torch.int32, True), ((16, 2), torch.int32, True)]
    assert (len(set(places[:3])), len(set(places[3:]))) == (1, 1)


def test_walks_own_rows_that_follow_each_other() -> None:
    seen: list[DraftWalk] = []

    class WatchedFiller(PlainFiller):
        def fill(self, walks: Sequence[DraftWalk], bitmask: Any) -> FilledMasks:
            seen.extend(walks)
            return super().fill(walks, bitmask)

    sequences = [sequence(ascending, [1, 2], num_seen=1), sequence(None), sequence(ascending, [2])]
    GrammarMaskBuilder(CpuBackend(), WatchedFiller(), VOCAB).build(decode(sequences, [[5], [1, 1], [7, 8]]))
    assert [list(walk.token_ids) for walk in seen] == [[2], [2]]
    assert [(list(walk.draft_ids), walk.first_row) for walk in seen] == [([5], 0), ([7, 8], 2)]


Table = dict[tuple[int, ...], Collection[int] | None]
tokens = st.integers(0, VOCAB - 1)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[SequenceToSample, list[int], Grammar | None]:
    """A sequence whose tokens follow a random grammar, its drafts, which may not, and the grammar."""
    if not draw(st.booleans()):
        return sequence(None, draw(st.lists(tokens, max_size=3))), draw(st.lists(tokens, max_size=3)), None
    sets = draw(st.lists(st.none() | st.sets(tokens, min_size=1, max_size=4), min_size=1, max_size=3))

    def grammar(past: tuple[int, ...]) -> set[int] | None:
        return sets[(sum(past) + len(past)) % len(sets)]

    matcher, text = FunctionMatcher(grammar, EOS), list[int]()
    for _ in range(draw(st.integers(0, 4))):
        may = grammar(tuple(text))
        text.append(draw(tokens if may is None or matcher.is_finished else st.sampled_from(sorted(may))))
        matcher.accept(text[-1])
    drafts: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        may = grammar((*text, *drafts))
        drafts.append(draw(tokens if may is None else st.sampled_from(sorted(may)) | tokens))
    return sequence(grammar, text, draw(st.integers(0, len(text)))), drafts, grammar


@given(st.lists(outputs(), min_size=1, max_size=4))
def test_a_row_allows_what_the_grammar_allows_after_everything_before_it(
    batch: list[tuple[SequenceToSample, list[int], Grammar | None]],
) -> None:
    expected, row = {}, 0
    for each, drafts, grammar in batch:
        if grammar is not None:
            matcher = FunctionMatcher(grammar, EOS)
            fed = [*each.output_token_ids, *drafts]
            for place in range(len(fed) + 1):
                may, number = grammar(tuple(fed[:place])), place - len(each.output_token_ids)
                if number >= 0 and may is not None and not matcher.is_finished:
                    expected[row + number] = set(may)
                if place == len(fed) or not matcher.accept(fed[place]):
                    break
        row += 1 + len(drafts)
    built = build(decode([each for each, _, _ in batch], [drafts for _, drafts, _ in batch]))
    assert allowed(built) == expected
    assert not built.failures
    for each, _, grammar in batch:
        assert grammar is None or matcher_of(each).token_ids == list(each.output_token_ids)
