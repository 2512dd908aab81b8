"""Rows of logits under masks: what is drawn, which drafts hold, and rows that nothing is left in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.sampling import forbidding, plain_logprobs, sampler_inputs
from hypothesis import given
from hypothesis import strategies as st

from thalweg.engine.device import Prepared, Sampled
from thalweg.engine.grammar_masks import GrammarMasks
from thalweg.engine.sample_stage import SampleStage, VerificationRule
from thalweg.engine.sampler import Sampler
from thalweg.engine.sampler_inputs import SamplerInputs, Siblings
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.upload import Uploader
from thalweg.interfaces import DraftRows, DraftSampler, TargetRows
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model.metadata import ForwardBatch

VOCAB, DRAFTS = 40, 2
RULES: list[VerificationRule] = ["rejection", "coupled"]


def masks(allowed: Mapping[int, Sequence[int]], unused: int = 0) -> GrammarMasks:
    """Masks of some rows, in the order given, among so many that are for nobody."""
    bits = np.zeros((len(allowed) + unused, 64), np.bool_)
    for place, ids in enumerate(allowed.values()):
        bits[unused + place, list(ids)] = True
    words = np.packbits(bits, axis=1, bitorder="little").view("<i4")
    return GrammarMasks(torch.from_numpy(words), np.array([-1] * unused + list(allowed), np.int64))


class KnownDrafter:
    """Proposes the same drafts for ever."""

    draft_length = DRAFTS
    target_layer_ids = ()

    def observe(self, rows: TargetRows) -> None:
        """It knows what it will say."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (rows.sequence_ids.size, DRAFTS)
        return torch.full(shape, 3, dtype=torch.int32), torch.ones(shape)


def run(
    logits: torch.Tensor,
    inputs: SamplerInputs,
    drafts: list[list[int]] | None = None,
    rule: VerificationRule = "coupled",
) -> Sampled:
    """One step; drafts: of each sequence, in a decode step."""
    backend = CpuBackend()
    stage = SampleStage(
        backend,
        bind("cpu"),
        Uploader(backend),
        vocab_size=VOCAB,
        num_draft_slots=8,
        drafter=None if drafts is None else KnownDrafter(),
        verification=rule,
    )
    lengths = torch.from_numpy(inputs.num_rows).int()
    ids = torch.tensor([token for own in drafts or [[]] * lengths.numel() for token in (0, *own)])
    batch = ForwardBatch(ids, ids, ids[:, None])
    prepared = Prepared(batch, None, lengths, lengths + 20, lengths, None)  # type: ignore[arg-type]
    with torch.inference_mode():
        sampled = stage.run(prepared, logits.clone(), inputs)
    backend.stream().record().wait()
    return sampled


def faults(sampled: Sampled) -> tuple[list[bool], list[bool] | None]:
    """(broken, starved)"""
    starved = sampled.host.starved_rows
    return sampled.host.broken_rows.tolist(), None if starved is None else starved.tolist()


def noise(rows: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("masked", [[1], [4, 0, 2], [0, 1, 2, 3, 4, 5]])
def test_only_allowed_tokens_are_drawn_and_other_rows_are_as_ever(temperature: float, masked: list[int]) -> None:
    rows = [SamplingRow(temperature=temperature, seed=seed) for seed in range(6)]
    logits = noise(6)
    free = run(logits, sampler_inputs(rows)).token_ids.tolist()
    allowed = {row: [5 + row, 33, 39] for row in masked}
    sampled = run(logits, sampler_inputs(rows, masks=masks(allowed, unused=2)))
    for row, token_id in enumerate(sampled.token_ids.tolist()):
        assert token_id in allowed[row] if row in allowed else token_id == free[row]
    assert faults(sampled) == ([False] * 6, [False] * 6)


def test_a_mask_comes_before_every_filter() -> None:
    """The allowed tokens are among the least likely, and still share the whole probability."""
    row = SamplingRow(temperature=0.8, top_k=2, top_p=0.9)
    logits = noise(1)
    allowed = logits[0].argsort()[:3].tolist()
    masked = torch.full((VOCAB,), -torch.inf)
    masked[allowed] = logits[0, allowed]
    probs = plain_logprobs(masked, row).exp()
    count = 400
    rows = [replace(row, seed=seed) for seed in range(count)]
    inputs = sampler_inputs(rows, masks=masks(dict.fromkeys(range(count), allowed)))
    drawn = np.bincount(run(logits.repeat(count, 1), inputs).token_ids.numpy(), minlength=VOCAB) / count
    np.testing.assert_allclose(drawn, probs.numpy(), atol=0.08)


def test_a_row_that_its_grammar_leaves_nothing_is_starved_and_others_only_broken() -> None:
    logits = noise(6)
    logits[1, 3] = torch.nan
    logits[2] = -torch.inf
    logits[4, :30] = -torch.inf
    allowed = {0: [], 1: [3, 4], 2: [], 4: [7, 29], 5: [7]}
    for rows in ([0, 1, 2, 4, 5], [4], [0, 4], [1, 2]):
        chosen = {row: allowed[row] for row in rows}
        inputs = sampler_inputs([SamplingRow()] * 6, masks=masks(chosen))
        broken, starved = faults(run(logits, inputs))
        assert starved == [row in rows and row in (0, 4) for row in range(6)]
        assert broken == [row in (1, 2) or starved[row] for row in range(6)]


def test_the_other_options_of_a_request_can_starve_it() -> None:
    """Only the end token is allowed, and `min_tokens` forbids it."""
    inputs = sampler_inputs([SamplingRow()] * 2, edits=forbidding([(0, 1)]), masks=masks({0: [1], 1: [1]}))
    sampled = run(noise(2), inputs)
    assert faults(sampled) == ([True, False], [True, False])
    assert sampled.token_ids[1] == 1


def test_without_grammars_nobody_is_starved_and_nothing_is_masked() -> None:
    def must_not_run(*_: Any) -> None:
        raise AssertionError("there are no masks")

    ops = bind("cpu")
    sampler = Sampler(_Replaced(ops, apply_token_bitmask=must_not_run), Uploader(CpuBackend()))
    found = sampler.clean(noise(2), sampler_inputs([SamplingRow()] * 2))
    assert found.starved is None
    assert not found.broken.any()


class _Replaced:
    """Ops, some of them other ones."""

    def __init__(self, ops: Any, **others: Any) -> None:
        self._ops = ops
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


def test_force_top_k_keeps_the_largest_that_are_allowed() -> None:
    logits = noise(1)
    ids = logits[0].argsort().tolist()
    config = SamplingConfig(force_top_k=2)
    sampler = Sampler(bind("cpu"), Uploader(CpuBackend()), force_top_k=config.force_top_k)
    sampler.clean(logits, sampler_inputs([SamplingRow()], masks=masks({0: ids[:3]})))
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == sorted(ids[1:3])


def test_siblings_have_the_mask_of_their_parent() -> None:
    rows = [SamplingRow(temperature=20.0, seed=seed) for seed in range(3)]
    siblings = Siblings(np.array([0] * 20 + [1, 2]), np.arange(22, dtype=np.uint64))
    allowed: dict[int, list[int]] = {0: [8, 31], 2: []}
    sampled = run(noise(3), sampler_inputs(rows, siblings=siblings, masks=masks(allowed)))
    assert sampled.host.sibling_ids is not None
    assert set(sampled.host.sibling_ids[:20].tolist()) == {8, 31}
    starved = [False, False, True, *[False] * 20, False, True]
    assert faults(sampled) == (starved, starved)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_not_allowed_is_refused_however_likely_it_is(
    rule: VerificationRule, temperature: float
) -> None:
    logits = torch.zeros(9, VOCAB)
    logits[:, 7] = 30.0
    logits[:, 8] = 20.0
    drafts = [[7, 7], [7, 7], [7, 7]]
    rows = [SamplingRow(temperature=temperature, seed=seed) for seed in range(3)]
    allowed = {0: [8, 9], 3: [7, 8], 4: [8, 9], 6: [7], 7: [7], 8: [9]}
    inputs = sampler_inputs(rows, [3] * 3, masks=masks(allowed), draft_write_slots=np.arange(1, 4, dtype=np.int32))
    sampled = run(logits, inputs, drafts, rule)
    assert sampled.num_accepted.tolist() == [0, 1, 2]
    assert sampled.token_ids.tolist() == [8, 8, 9]
    assert sampled.host.accepted_ids.tolist() == [[-1, -1], [7, -1], [7, 7]]
    assert sampled.host.accept_probs is not None
    assert sampled.host.accept_probs.tolist()[0][0] == 0.0
    assert faults(sampled) == ([False] * 3, [False] * 3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_starved_row_ends_the_run_of_accepted_drafts(rule: VerificationRule, temperature: float) -> None:
    """Token 0 is what a row of zeros would yield, and the draft in it."""
    logits = torch.zeros(6, VOCAB)
    logits[:, 0] = 30.0
    rows = [SamplingRow(temperature=temperature, seed=seed) for seed in range(2)]
    inputs = sampler_inputs(rows, [3, 3], masks=masks({0: [0], 1: [], 2: [0]}))
    sampled = run(logits, inputs, [[0, 0], [0, 0]], rule)
    assert sampled.num_accepted.tolist() == [1, 2]
    assert faults(sampled) == ([True, False], [True, False])


@pytest.mark.parametrize("rule", RULES)
def test_a_forced_token_wins_unless_the_row_is_starved(rule: VerificationRule) -> None:
    rows = [SamplingRow(), SamplingRow()]
    forced = np.array([5, 5, -1, 5, 5, 5], np.int32)
    inputs = sampler_inputs(rows, [3, 3], masks=masks({0: [5, 6], 1: [5, 6], 2: [9], 4: []}), forced_ids=forced)
    sampled = run(noise(6), inputs, [[5, 5], [5, 5]], rule)
    assert sampled.num_accepted.tolist() == [2, 1]
    assert sampled.token_ids[0] == 9
    assert faults(sampled) == ([False, True], [False, True])


@given(data=st.data(), rule=st.sampled_from(RULES), temperature=st.sampled_from([0.0, 1.0, 5.0]))
def test_everything_that_a_step_says_is_allowed_where_it_stands(
    data: st.DataObject, rule: VerificationRule, temperature: float
) -> None:
    drafts = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=DRAFTS), min_size=1, max_size=4))
    counts = [1 + len(own) for own in drafts]
    allowed: dict[int, list[int]] = {}
    firsts = np.cumsum([0, *counts[:-1]]).tolist()
    for first, own in zip(firsts, drafts, strict=True):
        for place in range(1 + len(own)):
            ids = data.draw(st.none() | st.lists(st.integers(0, 6), min_size=1, max_size=3))
            if ids is not None:
                allowed[first + place] = ids
            if place < len(own) and ids is not None and own[place] not in ids:
                break  # the rows behind a draft that is not allowed have no masks
    rows = [SamplingRow(temperature=temperature, seed=seed) for seed in range(len(drafts))]
    inputs = sampler_inputs(rows, counts, masks=masks(allowed) if allowed else None)
    sampled = run(noise(sum(counts), data.draw(st.integers(0, 99))), inputs, drafts, rule)
    assert not sampled.host.broken_rows.any()
    for index, first in enumerate(firsts):
        num_accepted = int(sampled.num_accepted[index])
        said = [*drafts[index][:num_accepted], int(sampled.token_ids[index])]
        assert all(token_id in allowed.get(first + place, [token_id]) for place, token_id in enumerate(said))
