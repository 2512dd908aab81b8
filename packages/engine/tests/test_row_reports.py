"""What the sampling stage says about tokens: log-probabilities, siblings, forced tokens, and how they were drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.sampling import forbidding, plain_logprobs, sampler_inputs

from thalweg.engine.device import Prepared, Sampled
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampler_inputs import SamplerInputs, Siblings
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.token_counts import PenaltyRows
from thalweg.engine.upload import Uploader
from thalweg.interfaces import DraftRows, DraftSampler, InvariantError, TargetRows
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model.metadata import ForwardBatch

VOCAB, DRAFTS = 13, 3
TABLE = 2 * torch.randn(10, VOCAB, generator=torch.Generator().manual_seed(5))


class TableDrafter:
    """Draws every draft from the same distribution, which is kept for the next step."""

    draft_length = DRAFTS
    target_layer_ids = ()
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(6))

    def observe(self, rows: TargetRows) -> None:
        """Not part of the stage."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        count = rows.sequence_ids.size
        drafts = [sampler.sample(place, self.logits.repeat(count, 1)) for place in range(DRAFTS)]
        return torch.stack(drafts, 1), torch.full((count, DRAFTS), 0.5)


def make_stage(**options: Any) -> SampleStage:
    backend = CpuBackend()
    return SampleStage(backend, bind("cpu"), Uploader(backend), vocab_size=VOCAB, num_draft_slots=9, **options)


def run(
    stage: SampleStage, inputs: SamplerInputs, logits: torch.Tensor, drafts: list[list[int]] | None = None
) -> Sampled:
    """One step; drafts: those that a decode step verifies, none in a prefill."""
    lengths = torch.from_numpy(inputs.num_rows).int()
    fed = [token for row in drafts or [[]] * len(lengths) for token in (0, *row)]
    nothing = torch.zeros(len(fed), dtype=torch.int64)
    batch = ForwardBatch(torch.tensor(fed), nothing, nothing[:, None])
    slots = torch.arange(1, len(lengths) + 1)
    prepared = Prepared(batch, None, lengths, lengths + 20, slots, None)  # type: ignore[arg-type]
    with torch.inference_mode():
        sampled = stage.run(prepared, logits.clone(), inputs)
    stage._copies._backend.stream().record().wait()
    return sampled


def check_tops(found: Any, position: int, expected: torch.Tensor, count: int) -> None:
    order = sorted(range(VOCAB), key=lambda token: (-float(expected[token]), token))[:count]
    assert found.top_ids[position, :count].tolist() == order
    np.testing.assert_allclose(found.top_logprobs[position, :count], expected[order], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_log_probabilities_are_those_of_the_model_or_of_the_draws(mode: Any) -> None:
    rows = [
        SamplingRow(temperature=0.7, top_k=4, seed=1, num_logprobs=2),
        SamplingRow(temperature=1.0, seed=2),
        SamplingRow(temperature=0.0, num_logprobs=5),
        SamplingRow(temperature=1.3, seed=3, num_logprobs=0),
    ]
    best = int(TABLE[2].argmax())
    inputs = sampler_inputs(rows, edits=forbidding([(2, best)]))
    host = run(make_stage(logprobs_mode=mode), inputs, TABLE[:4]).host
    found = host.logprobs
    assert found is not None
    assert found.offsets.tolist() == [0, 1, 1, 2, 3]
    assert found.top_ids.shape == (3, 5)
    drawn_from = TABLE[:4].clone()
    drawn_from[2, best] = -torch.inf
    for position, index in enumerate((0, 2, 3)):
        expected = torch.log_softmax(TABLE[index].double(), 0)
        if mode == "processed":
            expected = plain_logprobs(drawn_from[index], rows[index])
        token = int(host.token_ids[index])
        assert found.token_ids[position] == token
        assert found.logprobs[position] == pytest.approx(float(expected[token]), abs=1e-5)
        check_tops(found, position, expected, (2, 5, 0)[position])
    assert host.token_ids[2] != best
    assert run(make_stage(logprobs_mode=mode), sampler_inputs(rows[1:2]), TABLE[:1]).host.logprobs is None


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
def test_rows_of_a_decode_step_report_accepted_drafts_and_then_the_newest_token(verification: Any) -> None:
    rows = [SamplingRow(num_logprobs=1), SamplingRow(), SamplingRow(num_logprobs=3, temperature=1.0)]
    best = TABLE.argmax(-1).tolist()
    drafts = [[best[0], best[1], (best[2] + 1) % VOCAB], [best[4]], [best[6], best[7]]]
    stage = make_stage(drafter=TableDrafter(), verification=verification)
    host = run(stage, sampler_inputs(rows, [4, 2, 3]), TABLE[:9], drafts).host
    found = host.logprobs
    assert found is not None
    assert found.offsets.tolist() == [0, 4, 4, 7]
    assert found.token_ids[:3].tolist() == best[:3]
    num_accepted = int((host.accepted_ids[2] >= 0).sum())
    emitted = [*host.accepted_ids[2, :num_accepted].tolist(), int(host.token_ids[2])]
    assert found.token_ids[4 : 5 + num_accepted].tolist() == emitted
    expected = torch.log_softmax(TABLE.double(), -1)
    for position, row in enumerate((0, 1, 2)):
        assert found.logprobs[position] == pytest.approx(float(expected[row, best[row]]), abs=1e-5)
    for place, token in enumerate(emitted):
        assert found.logprobs[4 + place] == pytest.approx(float(expected[6 + place, token]), abs=1e-5)
        check_tops(found, 4 + place, expected[6 + place], 3)


def with_siblings(row: SamplingRow, seeds: list[int], **fields: Any) -> SamplerInputs:
    """A sequence without siblings, then one that has them."""
    siblings = Siblings(np.ones(len(seeds), np.int64), np.array(seeds, np.uint64))
    return sampler_inputs([SamplingRow(temperature=1.0, seed=77, num_logprobs=1), row], siblings=siblings, **fields)


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_siblings_draw_what_requests_of_their_own_would(verification: Any, mode: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("thalweg.engine.sampler.SIBLING_ELEMENTS", 2 * VOCAB)
    monkeypatch.setattr("thalweg.engine.step_report.SIBLING_ELEMENTS", 2 * VOCAB)
    row = SamplingRow(temperature=1.2, top_k=9, seed=5, num_logprobs=2)
    seeds = [6, 7, 8, 2**64 - 1, 0]
    options = {"verification": verification, "logprobs_mode": mode, "sampling": SamplingConfig(return_draws=True)}
    edits = forbidding([(1, int(TABLE[1].argmax()))])
    host = run(make_stage(**options), with_siblings(row, seeds, edits=edits), TABLE[:2]).host
    assert host.sibling_ids is not None
    assert host.logprobs is not None
    assert host.draws is not None
    assert host.logprobs.offsets.tolist() == host.draws.offsets.tolist() == list(range(8))
    assert host.broken_rows.tolist() == [False] * 7
    assert len(set(host.sibling_ids.tolist())) > 1
    for place, seed in enumerate(seeds):
        own = SamplingRow(temperature=1.2, top_k=9, seed=seed, num_logprobs=2)
        alone = run(make_stage(**options), with_siblings(own, [], edits=edits), TABLE[:2]).host
        assert alone.logprobs is not None
        assert alone.draws is not None
        assert host.sibling_ids[place] == alone.token_ids[1]
        for name in ("token_ids", "logprobs", "top_ids", "top_logprobs"):
            ours, theirs = getattr(host.logprobs, name)[2 + place], getattr(alone.logprobs, name)[1]
            np.testing.assert_array_equal(ours, theirs)
        assert host.draws.sum_smaller_probs[2 + place] == alone.draws.sum_smaller_probs[1]


def test_siblings_of_a_broken_row_are_broken() -> None:
    logits = TABLE[:2].clone()
    logits[1, 4] = torch.nan
    host = run(make_stage(), with_siblings(SamplingRow(temperature=1.0, num_logprobs=1), [3, 4]), logits).host
    assert host.broken_rows.tolist() == [False, True, True, True]
    assert host.logprobs is not None
    assert np.isfinite(host.logprobs.logprobs[0])
    assert (host.logprobs.logprobs[1:] == -np.inf).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_everything_is_forbidden_is_broken_and_no_other(temperature: float) -> None:
    rows = [SamplingRow(temperature=temperature, seed=index) for index in range(3)]
    edits = forbidding([(1, token) for token in range(VOCAB)])
    host = run(make_stage(), sampler_inputs(rows, edits=edits), TABLE[:3]).host
    clean = run(make_stage(), sampler_inputs(rows), TABLE[:3]).host
    assert host.broken_rows.tolist() == [False, True, False]
    assert host.token_ids[[0, 2]].tolist() == clean.token_ids[[0, 2]].tolist()


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_forced_token_accepts_the_draft_that_is_equal(verification: Any, temperature: float) -> None:
    rows = [SamplingRow(temperature=temperature, seed=index, num_logprobs=0) for index in range(3)]
    drafts = [[3, 4, 5], [3, 4, 5], [3, 4]]
    forced = np.array([3, 4, 6, -1, 9, -1, -1, -1, 3, 4, 11], np.int32)
    stage = make_stage(drafter=TableDrafter(), verification=verification)
    host = run(stage, sampler_inputs(rows, [4, 4, 3], forced_ids=forced), TABLE[[*range(10), 0]], drafts).host
    assert host.accepted_ids.tolist() == [[3, 4, -1], [-1] * 3, [3, 4, -1]]
    assert host.token_ids.tolist() == [6, 9, 11]
    assert host.logprobs is not None
    assert host.logprobs.token_ids[[0, 1, 2, 4, 8, 9, 10]].tolist() == [3, 4, 6, 9, 3, 4, 11]


def test_a_token_is_not_forced_past_a_broken_row() -> None:
    logits = TABLE[:4].clone()
    logits[1, 2] = torch.inf
    forced = np.array([3, 4, 5, -1], np.int32)
    stage = make_stage(drafter=TableDrafter())
    host = run(stage, sampler_inputs([SamplingRow()], [4], forced_ids=forced), logits, [[3, 4, 5]]).host
    assert host.accepted_ids.tolist() == [[3, -1, -1]]
    assert host.broken_rows.tolist() == [True]


def test_forced_first_tokens_hold_for_siblings_too() -> None:
    inputs = with_siblings(SamplingRow(temperature=1.0, num_logprobs=1), [3, 4], forced_ids=np.array([-1, 8], np.int32))
    host = run(make_stage(logprobs_mode="processed"), inputs, TABLE[:2]).host
    assert host.sibling_ids is not None
    assert [int(host.token_ids[1]), *host.sibling_ids.tolist()] == [8, 8, 8]


def test_draws_tell_the_mass_below_a_token_and_what_became_of_its_draft() -> None:
    rows = [SamplingRow(temperature=1.0, seed=index) for index in range(2)]
    options = {"sampling": SamplingConfig(return_draws=True), "drafter": TableDrafter()}
    stage = make_stage(**options)
    inputs = sampler_inputs(rows, [1, 1], draft_write_slots=np.array([1, 2], np.int32))
    drafts = run(stage, inputs, TABLE[:2], [[], []]).draft_ids.tolist()
    inputs = sampler_inputs(rows, [4, 4], draft_read_slots=np.array([1, 2], np.int32))
    sampled = run(stage, inputs, TABLE[:8], drafts)
    host, found = sampled.host, sampled.host.draws
    assert found is not None
    assert found.offsets.tolist() == [0, 4, 8]
    drawn_with = torch.log_softmax(TableDrafter.logits.double(), 0)
    assert host.accept_probs is not None
    assert sampled.num_accepted.sum() > 0
    for index in range(2):
        num_accepted = int(sampled.num_accepted[index])
        emitted = [*drafts[index][:num_accepted], int(host.token_ids[index])]
        assert found.accept_probs[4 * index : 4 * index + 3].tolist() == host.accept_probs[index].tolist()
        assert np.isnan(found.accept_probs[4 * index + 3])
        for place, token in enumerate(emitted):
            row = 4 * index + place
            probs = torch.softmax(TABLE[row].double(), 0)
            below = (probs < probs[token]) | ((probs == probs[token]) & (torch.arange(VOCAB) <= token))
            assert found.sum_smaller_probs[row] == pytest.approx(float(probs[below].sum()), abs=1e-5)
            expected = float(drawn_with[token]) if place < num_accepted else np.nan
            assert found.draft_logprobs[row] == pytest.approx(expected, abs=1e-5, nan_ok=True)
    assert run(make_stage(), sampler_inputs(rows), TABLE[:2]).host.draws is None


def test_a_blacklist_and_the_largest_logits_hold_for_every_row() -> None:
    best = TABLE.argsort(-1, descending=True)
    banned = int(best[0, 0])
    stage = make_stage(sampling=SamplingConfig(token_blacklist=(banned,), force_top_k=2), logprobs_mode="processed")
    rows = [SamplingRow(temperature=3.0, seed=seed, num_logprobs=3) for seed in range(200)]
    host = run(stage, sampler_inputs(rows), TABLE[:1].repeat(200, 1)).host
    allowed = [int(best[0, 1]), int(best[0, 2])]
    assert set(host.token_ids.tolist()) == set(allowed)
    assert host.logprobs is not None
    assert host.logprobs.top_ids[:, :2].tolist() == [allowed] * 200
    assert (host.logprobs.top_logprobs[:, 2] == -np.inf).all()


def test_drafts_are_drawn_from_the_largest_logits_but_may_be_blacklisted() -> None:
    order = TableDrafter.logits.argsort(descending=True)
    sampling = SamplingConfig(token_blacklist=(int(order[0]),), force_top_k=2)
    stage = make_stage(sampling=sampling, drafter=TableDrafter())
    rows = [SamplingRow(temperature=3.0, seed=seed) for seed in range(8)]
    sampled = run(stage, sampler_inputs(rows, [1] * 8), TABLE[:1].repeat(8, 1), [[]] * 8)
    assert set(sampled.draft_ids.flatten().tolist()) == set(order[:2].tolist())


def test_without_places_for_counts_a_penalty_is_our_bug() -> None:
    ones, none, no_rows = np.ones(1, np.float32), np.zeros(0, np.int32), np.zeros(0, np.int64)
    slot, no_drafts = np.array([3], np.int32), np.zeros((1, 0), np.int32)
    rows = PenaltyRows(np.arange(1), slot, no_drafts, ones, ones, ones, slot, none, no_rows, none, no_rows, slot)
    with pytest.raises(InvariantError, match="state slot 3 has no token counts; there are 1"):
        run(make_stage(), sampler_inputs([SamplingRow()], penalties=rows), TABLE[:1])
