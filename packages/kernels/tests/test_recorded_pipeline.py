"""A recorded verification from verdicts on rows to what is reported of sequences.

All keys of kernels/verify_pipeline are read here. Rows and their sequences: seqlen_q, ftp, row_to_req, local_step,
is_verify. Forced tokens and prefixes: candidate_token_ids, draft_token_ids, raw_accept, golden -> token_ids,
effective_accept, is_final. Positions: sample_positions -> sample_positions_q. Results: token_logprobs, sum_smaller,
top_logprobs, top_ids, accept_probs, confidence_pool, read_rows, stop_ids, num_steps -> out_*.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thalweg.kernels import Verification, bind
from thalweg.kernels.reference.metadata import spread_queries
from thalweg.kernels.testing import VectorLoader

ROW_STRIDE = 10000019
ops = bind("cpu", batch_invariant=True)


@pytest.fixture
def d(vectors: VectorLoader) -> dict[str, Tensor]:
    return vectors("kernels/verify_pipeline")


def fed_ids(d: dict[str, Tensor]) -> Tensor:
    """What the rows fed: the draft that row j judges was fed by row j + 1."""
    ids = torch.zeros_like(d["draft_token_ids"])
    ids[1:][d["is_verify"][:-1]] = d["draft_token_ids"][d["is_verify"]]
    return ids


@pytest.fixture
def verified(d: dict[str, Tensor]) -> Verification:
    """The recorded verdicts, with the recorded tokens forced on them."""
    token_ids, lengths, draft_length = fed_ids(d), d["seqlen_q"], int(d["num_steps"])
    free = Verification(
        d["candidate_token_ids"],
        d["raw_accept"],
        d["accept_probs"],
        torch.zeros_like(d["accept_probs"]),
        *ops.accepted_prefix(d["raw_accept"], token_ids, lengths, draft_length),
    )
    forced: Verification = ops.force_tokens(free, d["golden"], token_ids, lengths)
    return forced


def test_rows_are_expanded_as_recorded(d: dict[str, Tensor]) -> None:
    sequence, place = spread_queries(d["seqlen_q"], len(d["row_to_req"]))
    assert torch.equal(sequence, d["row_to_req"].long())
    assert torch.equal(place, d["local_step"].long())
    assert torch.equal(place < d["seqlen_q"][sequence] - 1, d["is_verify"])
    assert torch.equal(d["seqlen_q"].cumsum(0) - d["seqlen_q"], d["ftp"].long())


def test_positions_of_rows_are_as_recorded(d: dict[str, Tensor]) -> None:
    sequence, place = spread_queries(d["seqlen_q"], len(d["row_to_req"]))
    positions = d["sample_positions"].long()[sequence] + ROW_STRIDE * place
    assert torch.equal(positions, d["sample_positions_q"].long())


def test_forced_tokens_and_accepted_prefixes_are_as_recorded(d: dict[str, Tensor], verified: Verification) -> None:
    assert bool((d["golden"] >= 0).any())
    assert torch.equal(verified.token_ids, d["token_ids"])
    is_counted = d["local_step"] < verified.num_accepted[d["row_to_req"].long()]
    assert torch.equal(is_counted, d["effective_accept"])
    assert verified.last_rows.tolist() == d["is_final"].nonzero().flatten().tolist()
    assert torch.equal(verified.num_accepted, d["out_last_valid_offset"])


def test_counts_of_the_step_are_as_recorded(d: dict[str, Tensor], verified: Verification) -> None:
    places = torch.arange(int(d["num_steps"]))
    assert torch.equal((verified.num_accepted[:, None] > places).sum(0).int(), d["out_num_generated_tokens"])
    assert torch.equal((d["seqlen_q"][:, None] - 1 > places).sum(0).int(), d["out_num_verified_tokens"])
    confidences = d["confidence_pool"][d["read_rows"].long()]
    error = (verified.accept_probs - confidences).abs()[d["is_verify"]].sum()
    assert float(error) == pytest.approx(float(d["out_batch_confidence_error"]), abs=1e-5)
    emitted = torch.cat((verified.accepted_ids, verified.token_ids[verified.last_rows][:, None]), dim=1)
    stops = torch.where(d["stop_ids"] < 0, -2, d["stop_ids"])
    assert torch.equal((emitted[:, :, None] == stops[:, None]).any(2).any(1), d["out_emitted_stop_token"])


def test_what_is_reported_of_tokens_is_as_recorded(d: dict[str, Tensor], verified: Verification) -> None:
    is_counted = d["local_step"] < verified.num_accepted[d["row_to_req"].long()]
    of_rows = {
        "token_ids": verified.token_ids,
        "token_logprobs": d["token_logprobs"],
        "sum_smaller_probs": d["sum_smaller"],
        "top_logprobs": d["top_logprobs"],
        "top_token_ids": d["top_ids"],
    }
    for name, values in of_rows.items():
        assert torch.equal(values[verified.last_rows], d[f"out_sampled_{name}"]), name
        nothing = -1 if name == "token_ids" else 0
        mask = is_counted if values.dim() == 1 else is_counted[:, None]
        assert torch.equal(torch.where(mask, values, nothing), d[f"out_verified_{name}"]), name
