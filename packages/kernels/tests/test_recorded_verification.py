"""A recorded verify step, reproduced from logits and draft distributions to what is reported of every sequence."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from thalweg.kernels import Verification, bind
from thalweg.kernels.reference.metadata import spread_queries
from thalweg.kernels.reference.verification import ALPHA
from thalweg.kernels.testing import VectorLoader

GREEDY_UP_TO = 1.1e-5
DRAFT_LENGTH = 5
ROW_STRIDE = 10000019
PAD = 63
ops = bind("cpu", batch_invariant=True)


@dataclass
class Step:
    """The recorded inputs as the ops take them, and the recorded results by name."""

    recorded: dict[str, Tensor]
    logprobs: Tensor
    token_ids: Tensor
    is_greedy: Tensor
    read_slots: Tensor
    seeds: Tensor

    @property
    def lengths(self) -> Tensor:
        return self.recorded["seqlen_q"]

    @property
    def sequences(self) -> Tensor:
        return self.recorded["row_to_req"].long()


@pytest.fixture
def step(vectors: VectorLoader) -> Step:
    d = vectors("sampling/verify_step")
    sequences, judges = d["row_to_req"].long(), d["is_verify"]
    temperature, top_p, top_k, seeds = (d[key][sequences] for key in ("temperatures", "top_ps", "top_ks", "seeds"))
    token_ids = torch.zeros_like(d["read_rows"])
    token_ids[1:][judges[:-1]] = d["draft_ids_pool"][d["read_rows"].long()][judges]
    return Step(
        recorded=d,
        logprobs=ops.filtered_logprobs(d["logits"], temperature, top_p, top_k, torch.zeros_like(top_p)),
        token_ids=token_ids,
        is_greedy=temperature < GREEDY_UP_TO,
        read_slots=d["read_rows"][d["ftp"].long()] // DRAFT_LENGTH,
        seeds=seeds,
    )


def test_rows_and_their_positions_are_expanded_as_recorded(step: Step) -> None:
    d = step.recorded
    sequence, place = spread_queries(step.lengths, len(d["row_to_req"]))
    assert torch.equal(sequence, step.sequences)
    assert torch.equal(place, d["local_step"].long())
    assert torch.equal(place < step.lengths[sequence] - 1, d["is_verify"])
    assert torch.equal(d["positions"].long()[sequence] + ROW_STRIDE * place, d["exp_positions"].long())


def verify(step: Step, *, draw_greedy_rows: bool = False, name_certain: bool = False) -> Verification:
    """draw_greedy_rows: treat them as any other, as the recording did. name_certain: do not read the pool's pads."""
    d = step.recorded
    rows = None if draw_greedy_rows else (~step.is_greedy).nonzero().squeeze(1)
    chosen = slice(None) if rows is None else rows
    pool = d["draft_logprobs_pool"].view(-1, DRAFT_LENGTH, d["logits"].shape[1])
    is_certain = None
    if name_certain:
        is_certain = torch.zeros(pool.shape[:2], dtype=torch.bool)
        is_certain[0] = True
        pool = pool.clone()
        pool[0] = torch.nan
    return ops.verify_drafts(
        ops.argmax_lowest(d["logits"]),
        step.token_ids,
        step.lengths,
        torch.zeros_like(step.is_greedy),
        step.logprobs[chosen],
        step.seeds[chosen],
        d["exp_positions"][chosen],
        pool,
        step.read_slots,
        is_certain=is_certain,
        drawn_rows=rows,
    )


@pytest.mark.parametrize("name_certain", [False, True])
@pytest.mark.parametrize("draw_greedy_rows", [False, True])
def test_verdicts_are_as_recorded(step: Step, draw_greedy_rows: bool, name_certain: bool) -> None:
    d = step.recorded
    got = verify(step, draw_greedy_rows=draw_greedy_rows, name_certain=name_certain)
    assert torch.equal(got.token_ids, d["candidate"])
    assert torch.equal(got.is_accepted, d["accept_raw"])
    is_drawn = torch.ones_like(step.is_greedy) if draw_greedy_rows else ~step.is_greedy
    assert torch.allclose(got.accept_probs[is_drawn], d["accept_probs"][is_drawn], rtol=0, atol=1e-5)
    # By argmax a draft holds or not; the recording gives what holds ALPHA, its certain draft being nearly certain.
    by_argmax = torch.where(d["accept_raw"] & d["is_verify"], ALPHA, d["accept_probs"])
    assert torch.allclose(by_argmax[step.is_greedy], d["accept_probs"][step.is_greedy], rtol=0, atol=1e-5)
    assert set(got.accept_probs[~is_drawn].tolist()) <= {0.0, 1.0}
    assert torch.equal(got.accept_probs[~is_drawn] == 1, d["accept_raw"][~is_drawn])
    assert torch.equal(torch.isinf(got.draft_logprobs), torch.isinf(d["draft_selected_logprobs"]))
    finite = torch.isfinite(d["draft_selected_logprobs"])
    assert torch.allclose(got.draft_logprobs[finite], d["draft_selected_logprobs"][finite], rtol=0, atol=1e-5)


def check_prefix(step: Step, got: Verification, suffix: str) -> None:
    d = step.recorded
    place = d["local_step"]
    assert torch.equal(got.token_ids, d["tok" + suffix])
    assert torch.equal(place < got.num_accepted[step.sequences], d["accept" + suffix])
    assert got.last_rows.tolist() == d["is_final" + suffix].nonzero().squeeze(1).tolist()
    for sequence, (first, count) in enumerate(zip(d["ftp"].tolist(), got.num_accepted.tolist(), strict=True)):
        accepted = step.token_ids[first + 1 : first + 1 + count].tolist()
        assert got.accepted_ids[sequence].tolist() == accepted + [-1] * (DRAFT_LENGTH - count)


def test_accepted_prefixes_are_as_recorded(step: Step) -> None:
    check_prefix(step, verify(step), "")


def test_accepted_prefixes_with_forced_tokens_are_as_recorded(step: Step) -> None:
    free, forced_ids = verify(step), step.recorded["golden"]
    got = ops.force_tokens(free, forced_ids, step.token_ids, step.lengths)
    check_prefix(step, got, "_golden")
    assert torch.equal(got.accept_probs, free.accept_probs)
    assert (forced_ids >= 0).any()


def test_the_logprobs_reported_of_tokens_are_as_recorded(step: Step) -> None:
    d = step.recorded
    tokens = verify(step).token_ids
    logprobs = ops.token_logprobs(step.logprobs, tokens)
    assert torch.allclose(logprobs, d["token_logprobs"], rtol=0, atol=1e-5)
    smaller = ops.sum_smaller_probs(step.logprobs, tokens)
    assert torch.allclose(smaller, d["sum_smaller"], rtol=0, atol=1e-5)
    values, ids = ops.top_logprobs(step.logprobs, 4)
    finite = torch.isfinite(d["top_logprobs"])
    assert torch.equal(torch.isfinite(values), finite)
    assert torch.allclose(values[finite], d["top_logprobs"][finite], rtol=1e-6, atol=1e-5)
    assert torch.equal(ids[finite], d["top_ids"][finite])


def test_the_counts_of_a_step_follow_from_its_verification(step: Step) -> None:
    d, got = step.recorded, verify(step, draw_greedy_rows=True)
    places = torch.arange(DRAFT_LENGTH)
    assert torch.equal(got.num_accepted, d["F_last_valid_offset"])
    assert torch.equal((got.num_accepted[:, None] > places).sum(0).int(), d["F_num_generated_tokens"])
    assert torch.equal((step.lengths[:, None] - 1 > places).sum(0).int(), d["F_num_verified_tokens"])
    confidences = d["confidence_pool"][d["read_rows"].long()]
    error = (got.accept_probs - confidences).abs()[d["is_verify"]].sum()
    assert float(error) == pytest.approx(float(d["F_batch_confidence_error"]), abs=1e-4)
    emitted = torch.cat((got.accepted_ids, got.token_ids[got.last_rows][:, None]), dim=1)
    stops = torch.where(d["stop_token_ids"] < 0, -2, d["stop_token_ids"])
    assert torch.equal((emitted[:, :, None] == stops[:, None]).any(2).any(1), d["F_emitted_stop_token"])


def test_what_is_reported_of_newest_and_accepted_tokens_is_as_recorded(step: Step) -> None:
    d, got = step.recorded, verify(step)
    values, ids = ops.top_logprobs(step.logprobs, 4)
    by_row = {
        "token_ids": got.token_ids,
        "token_logprobs": ops.token_logprobs(step.logprobs, got.token_ids),
        "sum_smaller_probs": ops.sum_smaller_probs(step.logprobs, got.token_ids),
        "top_logprobs": values,
        "top_token_ids": ids.masked_fill(torch.isinf(values), -1),
    }
    counts = d["local_step"] < got.num_accepted[step.sequences]
    for kind, rows in (("sampled", got.last_rows), ("verified", counts)):
        is_filtered = torch.isinf(values[rows])
        for name, found in by_row.items():
            expected = d[f"F_{kind}_{name}"]
            expected = expected if kind == "sampled" else expected[counts]
            if name == "top_token_ids":  # ids of filtered tokens are arbitrary
                expected = expected.masked_fill(is_filtered, -1)
            assert torch.allclose(found[rows].double(), expected.double(), rtol=1e-6, atol=1e-5), (kind, name)
    for name in by_row:
        assert d[f"F_verified_{name}"][~counts].unique().tolist() == [-1 if name == "token_ids" else 0]
