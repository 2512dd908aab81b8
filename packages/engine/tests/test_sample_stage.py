"""The stage after the model by itself: how drafts are judged, what is kept of them, what a drafter may get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.sampling import sampler_inputs
from numpy.typing import NDArray

from thalweg.engine.device import Prepared, Sampled
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.upload import Uploader
from thalweg.interfaces import DraftRows, DraftSampler, InvariantError, TargetRows
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model.metadata import ForwardBatch

VOCAB, DRAFTS = 11, 3
Propose = Callable[[DraftRows, DraftSampler], tuple[torch.Tensor, torch.Tensor]]


class FunctionDrafter:
    """Proposes what a function says."""

    draft_length = DRAFTS
    target_layer_ids = ()

    def __init__(self, propose: Propose) -> None:
        self.propose = propose

    def observe(self, rows: TargetRows) -> None:
        """Not part of the stage."""


def table_drafts(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws every draft from a distribution of its place."""
    count = rows.sequence_ids.size
    tables = torch.randn(DRAFTS, VOCAB, generator=torch.Generator().manual_seed(4))
    drafts = [sampler.sample(place, tables[place].repeat(count, 1)) for place in range(DRAFTS)]
    return torch.stack(drafts, 1), torch.full((count, DRAFTS), 0.5)


def make_stage(propose: Propose = table_drafts, verification: Any = "rejection", **options: Any) -> SampleStage:
    backend = CpuBackend()
    return SampleStage(
        backend,
        bind("cpu"),
        Uploader(backend),
        vocab_size=VOCAB,
        num_draft_slots=6,
        drafter=FunctionDrafter(propose),
        verification=verification,
        **options,
    )


def step(
    stage: SampleStage,
    logits: torch.Tensor,
    drafts: list[list[int]],
    *,
    temperatures: list[float],
    context: int = 20,
    read_slots: list[int] | None = None,
    eos: int = -1,
) -> Sampled:
    """A decode step of sequences that verify these drafts; sequence i writes to slot i + 1. logits: [V] or [T, V]."""
    counts = np.array([1 + len(row) for row in drafts])
    num_sequences, num_rows = counts.size, int(counts.sum())
    lengths = torch.from_numpy(counts).int()
    token_ids = torch.tensor([token for row in drafts for token in (0, *row)])
    nothing = torch.zeros(num_rows, dtype=torch.int64)
    prepared = Prepared(
        ForwardBatch(token_ids, nothing, nothing[:, None]),
        None,  # type: ignore[arg-type]
        lengths,
        lengths + context,
        torch.arange(1, num_sequences + 1),
        None,
    )
    rows = [
        SamplingRow(temperature=temperature, seed=seed, eos_token_id=eos)
        for seed, temperature in enumerate(temperatures)
    ]
    inputs = sampler_inputs(
        rows,
        counts.tolist(),
        sample_positions=np.full(num_sequences, context + 1),
        draft_read_slots=np.array([0] * num_sequences if read_slots is None else read_slots, np.int32),
        draft_write_slots=np.arange(1, num_sequences + 1, dtype=np.int32),
    )
    values = logits.clone() if logits.dim() == 2 else logits.repeat(num_rows, 1)
    with torch.inference_mode():
        sampled = stage.run(prepared, values, inputs)
    stage._copies._backend.stream().record().wait()
    return sampled


def peaked(token_id: int) -> torch.Tensor:
    values = torch.zeros(VOCAB)
    values[token_id] = 3.0
    return values


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
def test_greedy_drafts_hold_while_they_are_the_argmax_whatever_the_rule(verification: str) -> None:
    stage = make_stage(verification=verification)
    sampled = step(stage, peaked(7), [[7, 7, 7], [7, 2, 7], [], [3]], temperatures=[0.0] * 4)
    assert sampled.num_accepted.tolist() == [3, 1, 0, 0]
    assert sampled.token_ids.tolist() == [7] * 4
    assert sampled.host.accepted_ids.tolist() == [[7, 7, 7], [7, -1, -1], [-1] * 3, [-1] * 3]
    expected = [[1.0, 1, 1], [1, 0, 1], [torch.nan] * 3, [0, torch.nan, torch.nan]]
    np.testing.assert_array_equal(sampled.host.accept_probs, expected)


def test_greedy_rows_leave_the_pool_alone() -> None:
    stage = make_stage()
    assert stage._pool is not None
    before = stage._pool.logprobs.clone(), stage._pool.is_certain.clone()
    step(stage, peaked(7), [[7, 7, 7], [7]], temperatures=[0.0, 0.0])
    assert torch.equal(stage._pool.logprobs, before[0])
    assert torch.equal(stage._pool.is_certain, before[1])
    step(stage, peaked(7), [[7, 7, 7], [7]], temperatures=[0.0, 1.0])
    changed = (stage._pool.logprobs != before[0]).flatten(1).any(1)
    assert changed.tolist() == [False, False, True, False, False, False]


def test_a_greedy_request_beside_sampled_ones_changes_nothing_for_either() -> None:
    logits = torch.randn(4 + 4 + 2, VOCAB, generator=torch.Generator().manual_seed(2))
    drafts = [[5, 1, 2], [5, 1, 2], [9]]
    mixed = step(make_stage(), logits, drafts, temperatures=[1.0, 0.0, 1.0])
    for sampling, temperatures in ((mixed.token_ids[[0, 2]], [1.0] * 3), (mixed.token_ids[[1, 1]], [0.0] * 3)):
        alone = step(make_stage(), logits, drafts, temperatures=temperatures)
        rows = [0, 2] if temperatures[0] else [1, 1]
        assert alone.token_ids[rows].tolist() == sampling.tolist()
        assert torch.equal(alone.host.accept_probs[rows].nan_to_num(2), mixed.host.accept_probs[rows].nan_to_num(2))
        assert torch.equal(alone.draft_ids[rows], mixed.draft_ids[rows])
        assert torch.equal(alone.host.accepted_ids[rows], mixed.host.accepted_ids[rows])


def test_drafts_are_judged_by_the_distributions_that_they_were_drawn_from() -> None:
    """A drafter with the target's own distributions is always believed; placeholders are not."""
    table = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))

    def copy_target(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        drafts = [sampler.sample(place, table.repeat(rows.sequence_ids.size, 1)) for place in range(DRAFTS)]
        return torch.stack(drafts, 1), torch.ones(rows.sequence_ids.size, DRAFTS)

    stage = make_stage(copy_target)
    pads = [[VOCAB - 1] * DRAFTS] * 5
    first = step(stage, table, pads, temperatures=[1.0] * 5)
    probability = torch.softmax(table, 0)[VOCAB - 1]
    np.testing.assert_allclose(first.host.accept_probs, probability.expand(5, DRAFTS), atol=1e-4)
    second = step(stage, table, first.draft_ids.tolist(), temperatures=[1.0] * 5, read_slots=[1, 2, 3, 4, 5])
    assert second.num_accepted.tolist() == [DRAFTS] * 5
    np.testing.assert_allclose(second.host.accept_probs, 1.0, atol=1e-4)


def test_places_that_the_sampler_drew_keep_what_it_drew_and_others_stand_for_themselves() -> None:
    table = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    drawn: list[torch.Tensor] = []

    def half_drawn(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        count = rows.sequence_ids.size
        drawn[:] = [sampler.sample(place, table.repeat(count, 1)) for place in range(2)]
        replaced = (drawn[1] + 1) % VOCAB
        return torch.stack((drawn[0], replaced, torch.full_like(replaced, 4)), 1), torch.ones(count, DRAFTS)

    stage = make_stage(half_drawn)
    first = step(stage, table, [[]] * 5, temperatures=[1.0] * 5)
    assert first.draft_ids.tolist() == torch.stack((*drawn, torch.full((5,), 4)), 1).tolist()
    assert first.confidences.tolist() == [[1.0, 1.0, 1.0]] * 5  # another one would tell which token was drawn
    assert first.host.draft_faults.tolist() == [5, 0]
    second = step(stage, table, first.draft_ids.tolist(), temperatures=[1.0] * 5, read_slots=[1, 2, 3, 4, 5])
    np.testing.assert_allclose(second.host.accept_probs[:, :2], 1.0, atol=1e-4)
    np.testing.assert_allclose(second.host.accept_probs[:, 2], torch.softmax(table, 0)[4].expand(5), atol=1e-4)


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
@pytest.mark.parametrize("earlier", [[0.0, 0.0], [5.0, 0.0], [0.3, 5.0]])
def test_what_a_slot_held_before_changes_nothing_for_its_next_owner(verification: str, earlier: list[float]) -> None:
    table = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))

    def serve(stage: SampleStage) -> list[list[Any]]:
        """Two steps of new sequences: the first verifies placeholders, the second what the first one drew."""
        first = step(stage, table, [[VOCAB - 1] * DRAFTS] * 2, temperatures=[1.0, 0.7])
        second = step(stage, table, first.draft_ids.tolist(), temperatures=[1.0, 0.7], read_slots=[1, 2], context=24)
        return [
            [sampled.token_ids.tolist(), sampled.draft_ids.tolist(), sampled.host.accept_probs.tolist()]
            for sampled in (first, second)
        ]

    used = make_stage(verification=verification)
    drafts = step(used, table, [[]] * 2, temperatures=earlier).draft_ids.tolist()
    step(used, table, drafts, temperatures=earlier, read_slots=[1, 2])
    assert serve(used) == serve(make_stage(verification=verification))


def test_what_was_drawn_stays_whatever_a_drafter_does_to_the_tensors_it_got() -> None:
    def tamper(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.randn(DRAFTS, VOCAB, generator=torch.Generator().manual_seed(4))
        drafts = [sampler.sample(place, table[place].repeat(4, 1)) for place in range(DRAFTS)]
        for draft in drafts:
            draft.add_(1).remainder_(VOCAB)
        return torch.stack(drafts, 1), torch.full((4, DRAFTS), 0.5)

    for temperatures in ([1.0] * 4, [0.0] * 4, [0.0, 1.0, 0.0, 1.0]):
        expected = step(make_stage(), peaked(7), [[]] * 4, temperatures=temperatures)
        found = step(make_stage(tamper), peaked(7), [[]] * 4, temperatures=temperatures)
        assert found.draft_ids.tolist() == expected.draft_ids.tolist()
        assert found.host.draft_faults.tolist() == [4 * DRAFTS, 0]


def bad_drafts(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
    count = rows.sequence_ids.size
    drafts = torch.tensor([[-1, 2, 10**12], [1, VOCAB, 3]])[:count]
    confidences = torch.tensor([[1.0, torch.nan, 1.0], [-0.5, 0.5, torch.inf]], dtype=torch.float64)[:count]
    return drafts, confidences


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_drafter_gets_wrong_is_put_right_and_counted(temperature: float) -> None:
    sampled = step(make_stage(bad_drafts), peaked(7), [[], []], temperatures=[temperature] * 2)
    assert sampled.draft_ids.tolist() == [[VOCAB - 1, 2, VOCAB - 1], [1, VOCAB - 1, 3]]
    assert sampled.draft_ids.dtype == torch.int32
    assert sampled.confidences.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert sampled.host.draft_faults.tolist() == [3, 3]
    good = step(make_stage(), peaked(7), [[], []], temperatures=[temperature] * 2)
    assert good.host.draft_faults.tolist() == [0, 0]
    assert good.confidences.tolist() == [[0.5] * DRAFTS] * 2


@pytest.mark.parametrize(
    ("drafts", "confidences", "message"),
    [
        (torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 3), r"draft ids have shape \[2, 2\]; \[2, 3\] is needed"),
        (torch.zeros(2, 3, dtype=torch.int32), torch.zeros(3), r"confidences have shape \[3\]; \[2, 3\] is needed"),
        (torch.zeros(2, 3), torch.zeros(2, 3), "draft ids have dtype torch.float32; int32 or int64 is needed"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3).bool(), "confidences have dtype torch.bool"),
    ],
)
def test_tensors_of_another_kind_are_refused(drafts: torch.Tensor, confidences: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step(make_stage(lambda rows, sampler: (drafts, confidences)), peaked(7), [[], []], temperatures=[0.0, 0.0])


@pytest.mark.parametrize("places", [[1], [0, 0], [0, 2], [0, 1, 2, 3]])
def test_drafts_are_drawn_in_order_and_once(places: list[int]) -> None:
    def draw(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        for place in places:
            sampler.sample(place, torch.zeros(2, VOCAB))
        raise AssertionError("a place was drawn out of turn")

    with pytest.raises(ValueError, match=f"place is {places[-1]}; of 3 drafts {len(places) - 1} are drawn"):
        step(make_stage(draw), peaked(7), [[], []], temperatures=[1.0, 0.0])


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_whose_logits_are_not_numbers_still_gets_tokens(verification: str, temperature: float) -> None:
    def broken(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.zeros(2, VOCAB)
        logits[0, 3] = torch.nan
        logits[1] = -torch.inf
        drafts = [sampler.sample(place, logits.clone()) for place in range(DRAFTS)]
        return torch.stack(drafts, 1), torch.ones(2, DRAFTS)

    stage = make_stage(broken, verification)
    first = step(stage, torch.zeros(VOCAB), [[], []], temperatures=[temperature] * 2)
    assert first.host.draft_faults.tolist() == [0, 0]
    drafts = first.draft_ids.tolist()
    second = step(stage, torch.zeros(VOCAB), drafts, temperatures=[temperature] * 2, context=21, read_slots=[1, 2])
    assert second.num_accepted.tolist() == [DRAFTS] * 2  # the target believes in all tokens alike, too


def test_confidence_ends_with_the_sequence() -> None:
    stage = make_stage()
    sampled = step(stage, peaked(7), [[7, 7], [2, 7], [7]], temperatures=[0.0] * 3, eos=7)
    assert sampled.confidences.tolist() == [[0.0] * DRAFTS] * 3
    sampled = step(stage, peaked(7), [[3], [7]], temperatures=[0.0] * 2, eos=3)
    assert sampled.confidences.tolist() == [[0.5] * DRAFTS] * 2


def test_anchors_are_the_newest_tokens_at_their_own_positions() -> None:
    seen: list[DraftRows] = []

    def look(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(rows)
        return table_drafts(rows, sampler)

    step(make_stage(look), peaked(7), [[7, 7], [], [1, 7]], temperatures=[0.0] * 3, context=20)
    (rows,) = seen
    assert rows.anchor_token_ids.tolist() == [7, 7, 7]
    assert rows.positions.tolist() == [23, 21, 21]  # tokens 0..19 are cached, 20 is the old anchor
    assert rows.state_slots.tolist() == [1, 2, 3]


def uniform(seed: int, position: int, case: int) -> float:
    ops: Any = bind("cpu")
    return float(ops.uniform(torch.tensor([seed % 2**64], dtype=torch.uint64), torch.tensor([position]), case)[0])


def inverse(u: float, weights: NDArray[np.float64]) -> int:
    return int(np.searchsorted(np.cumsum(weights), u * weights.sum(), side="right"))


@pytest.mark.parametrize(("rule", "stride"), [("per_step", 10000019), ("absolute", 1)])
def test_drafts_use_random_numbers_of_their_own(rule: str, stride: int) -> None:
    """The seed is offset; the position is that of the row that will judge the draft, or the index of its token."""
    stage = make_stage(draft_positions=rule)
    sampled = step(stage, peaked(7), [[], []], temperatures=[1.0, 1.0], context=20)
    tables = torch.randn(DRAFTS, VOCAB, generator=torch.Generator().manual_seed(4))
    weights = torch.softmax(tables, -1).double().numpy()
    for sequence in range(2):
        drawn = [
            inverse(uniform(sequence + 1000000007, 22 + stride * place, 0), weights[place]) for place in range(DRAFTS)
        ]
        assert sampled.draft_ids[sequence].tolist() == drawn


def test_rows_of_a_step_use_random_numbers_of_their_own() -> None:
    """A step of one row draws fresh at the index of its token; row j of a longer one, 10000019 * j further on."""
    table = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    weights = torch.softmax(table, 0).double().numpy()
    sampled = step(make_stage(), table, [[], [-1]], temperatures=[1.0, 1.0], context=20)
    assert sampled.token_ids.tolist()[0] == inverse(uniform(0, 21, 0), weights)
    assert sampled.token_ids.tolist()[1] == inverse(uniform(1, 21, 1), weights)  # a refused draft's residual
    accepted = step(make_stage(), peaked(7) * 100, [[7, 7]], temperatures=[1.0], context=20)
    assert accepted.num_accepted.tolist() == [2]


def test_coupled_drafts_repeat_the_tokens_that_they_guess() -> None:
    """Same seed, same index, same distribution: the same token, drafted or drawn."""
    table = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))

    def copy_target(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        drafts = [sampler.sample(place, table.repeat(5, 1)) for place in range(DRAFTS)]
        return torch.stack(drafts, 1), torch.ones(5, DRAFTS)

    stage = make_stage(copy_target, "coupled")
    first = step(stage, table, [[]] * 5, temperatures=[1.0] * 5, context=20)
    second = step(stage, table, first.draft_ids.tolist(), temperatures=[1.0] * 5, context=21)
    assert second.num_accepted.tolist() == [DRAFTS] * 5
    assert second.host.accept_probs.tolist() == [[1.0] * DRAFTS] * 5


def test_a_plan_with_drafts_needs_a_drafter() -> None:
    backend = CpuBackend()
    stage = SampleStage(backend, bind("cpu"), Uploader(backend), vocab_size=VOCAB)
    with pytest.raises(InvariantError, match="the plan carries drafts, but there is no drafter"):
        step(stage, peaked(7), [[1]], temperatures=[0.0])
