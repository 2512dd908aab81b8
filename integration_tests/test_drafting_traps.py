"""Mistakes that other implementations of drafting have made, each with a test that would show it here.

- Verification and plain decoding compute attention differently: greedy texts as the context grows, below; logits and
  caches bit for bit in test_rollback.py.
- Drafts accepted by argmax at temperature > 0: a perfect drafter, and how often drafts hold, below; the laws of texts
  in test_drafts_law.py.
- Shared experts or Markov tensors skipped by the loader: below; every draft tensor has a reader in
  packages/model/tests/test_draft_loader.py.
- Block seeded one position early: where a block begins, below; against a dense drafter in
  packages/model/tests/drafts/test_traps.py, as are all mistakes inside the network.
- More drafts than a block was trained for: refused, below.
- Sequential head or visibility inside the block wrong: a perfect drafter at every place, and what the first draft sees,
  below.
- Rows mapped to sequences by lengths that the device has changed: greedy texts with lengths that vary, below; all
  outcomes in one step in test_rollback.py.
- A budget search that stops at the first descent: the staircase, below; packages/scheduler/tests/test_verify_budget.py.
- Random numbers of drafts used again in the next round: test_drafts_law.py.
- Confidences looked at after the forward pass: rows that were computed, below.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollback_testing.bench import Bench, Proposal
from rollback_testing.cases import random_text
from rollback_testing.chains import overwrite, write_chain_checkpoint
from rollback_testing.changes import Oracle, Texts, confident
from rollback_testing.expectations import best_lengths, throughput, trials
from rollback_testing.models import TINY_A, tiny_a
from rollback_testing.serving import Served, serve
from thalweg.engine import EngineConfig, SamplingParams, build_engine
from thalweg.interfaces import ConfigError
from thalweg.model import DraftNetwork, Model, small_config, write_random_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
PROMPTS = tuple(tuple(random_text(length, 240, length).tolist()) for length in (1, 9, 16, 47, 101, 120))
SIZES = {"max_num_seqs": 6, "max_model_len": 200}
MINUTE = 60_000.0
"""Steps of a minute: what this machine measures is nothing beside them, and changes no budget."""

Chain = tuple[str, Model, DraftNetwork]


@cache
def plain_texts() -> Texts:
    """Of the recorded model without drafts."""
    return serve(str(TINY_A), *tiny_a(), PROMPTS, GREEDY, draft_length=0, async_scheduling=False, **SIZES).texts


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    path = tmp_path_factory.mktemp("chain") / "checkpoint"
    write_chain_checkpoint(path)
    model = Model.load(path)
    return str(path), model, DraftNetwork.load(path, model)


@cache
def drafted(*, verification: str = "rejection", draft_length: int = 3, is_variable: bool = False) -> Served:
    """The same requests with a drafter that is often right; in place, or overlapping where lengths vary."""
    oracle = Oracle(plain_texts())
    return serve(
        str(TINY_A),
        *tiny_a(),
        PROMPTS,
        GREEDY,
        oracle=oracle,
        confide=oracle.confide,
        step_times=[(size, MINUTE * (10 + size)) for size in range(1, 25)] if is_variable else [],
        async_scheduling=is_variable,
        variable_length=is_variable,
        verification=verification,
        draft_length=draft_length,
        **SIZES,
    )


@pytest.mark.parametrize(
    "options", [{}, {"verification": "coupled", "draft_length": 2}, {"is_variable": True}], ids=str
)
def test_greedy_texts_stay_the_same_as_the_context_grows(options: dict[str, Any]) -> None:
    """Past the window (16), the entries that an index selects (16) and a block (128)."""
    served = drafted(**options)
    assert served.texts == plain_texts()
    verified = np.concatenate([record.outcome.num_verified for record in served.steps])
    accepted = np.concatenate([record.outcome.num_accepted for record in served.steps])
    assert (accepted > 1).sum() > 40
    assert ((verified > 1) & (accepted < verified)).sum() > 5
    if "is_variable" in options:
        assert set(verified.tolist()) >= {1, 2, 3, 4}
        planned = np.concatenate([record.plan.query_lengths for record in served.steps])
        assert ((verified > 0) & (verified != planned)).sum() > 3, "the device never shares lengths out anew"


@pytest.mark.parametrize(("verification", "is_async"), [("rejection", False), ("rejection", True), ("coupled", True)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_perfect_drafter_is_believed_at_every_place(
    temperature: float, verification: str, is_async: bool, chain: Chain
) -> None:
    """Every draft rests on the one before, and the likeliest token has a tenth of the probability or so."""
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=60, ignore_eos=True, top_p=top_p, top_k=top_k)
        for seed, (top_p, top_k) in enumerate(((1.0, -1), (0.8, -1), (1.0, 40), (0.9, 200)))
    ]
    prompts = [[7, 8, 9], [100] * 30, list(range(5, 140)), [11]]
    options = {"verification": verification, "async_scheduling": is_async, "max_num_seqs": 4, "max_model_len": 256}
    served = serve(*chain, prompts, params, **options)
    assert served.num_verified.tolist() == served.num_accepted.tolist()
    assert served.num_verified.min() >= 4 * 8


def test_drafts_hold_as_often_as_the_distributions_agree(chain: Chain, tmp_path: Path) -> None:
    """A drafter that is less sure than the target: a draft holds with probability sum of min(p, d), about two thirds.

    Accepted by argmax, one in ten or so would hold.
    """
    path, model, _ = chain
    directory = shutil.copytree(path, tmp_path / "unsure")
    overwrite(directory, {"mtp.1.markov_head.head.weight": (model.parameters["head.weight"] / 2).bfloat16()})
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=100, ignore_eos=True) for seed in range(12)]
    network = DraftNetwork.load(directory, model)
    served = serve(str(directory), model, network, [[5 + seed] for seed in range(12)], params, max_num_seqs=12)
    tokens = torch.arange(model.config.vocab_size)[:, None]
    logits = torch.cat(model.forward_sequences(list(tokens)))
    agreement = torch.minimum(logits.softmax(-1), (logits / 2).softmax(-1)).sum(-1)
    hits, chances = np.array(list(trials(served, agreement))).T
    assert len(hits) > 900
    assert 0.5 < chances.mean() < 0.8
    deviation = (hits - chances).sum() / math.sqrt((chances * (1 - chances)).sum())
    assert abs(deviation) < 4, f"{hits.mean():.3f} of the drafts hold, {chances.mean():.3f} should"


def test_tensors_that_loaders_have_skipped_change_the_drafts(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    config = write_random_checkpoint(path, small_config(num_nextn_predict_layers=2), seed=3)
    model, text = Model.load(path), random_text(3, config.vocab_size, 25)

    def proposal() -> Proposal:
        bench = Bench(model, DraftNetwork.load(path, model), draft_length=5, num_lanes=1)
        lane = bench.lane(text)
        bench.prefill([(lane, 0, 24)])
        return bench.propose([(lane, 24)])[0]

    right = proposal()
    assert right.equals(proposal())
    shared = [f"mtp.{layer}.ffn.shared_experts.{part}.weight" for layer in range(2) for part in ("w1", "w2", "w3")]
    heads = ["mtp.1.markov_head.embed.weight", "mtp.1.markov_head.head.weight", "mtp.1.confidence_head.proj.weight"]
    for name in (*shared, *heads, "mtp.0.main_proj.weight"):
        content = overwrite(path, {name: None})
        assert not proposal().equals(right), f"{name} is not used"
        overwrite(path, content)


def test_a_block_begins_with_the_newest_token_at_its_own_position() -> None:
    served = drafted()
    noise = tiny_a()[0].config.dspark_noise_token_id
    anchors = [(token, position) for (_, position), (token, _, _) in served.proposals.items()]
    assert served.blocks == [
        row for token, position in anchors for row in ((token, position), (noise, position + 1), (noise, position + 2))
    ]
    said = [(served.texts[row][at : at + 1], token) for (row, at), (token, _, _) in served.proposals.items()]
    assert sum(text == [token] for text, token in said) > 70
    assert all(text in ([], [token]) for text, token in said), "an anchor is not the token of the text at its position"


def test_the_first_draft_sees_the_whole_block() -> None:
    """Of one, two or three rows, so its logits differ; were it blind to later rows, they would be equal."""
    text = random_text(4, tiny_a()[0].config.vocab_size, 31)
    seen = []
    for draft_length in (1, 2, 3):
        bench = Bench(*tiny_a(), draft_length, num_lanes=1)
        lane = bench.lane(text)
        bench.prefill([(lane, 0, 30)])
        seen.append(bench.propose([(lane, 30)])[0].logits[0])
    assert not any(torch.equal(one, other) for one, other in combinations(seen, 2))


@pytest.mark.parametrize("draft_length", [4, 7])
def test_more_drafts_than_a_block_has_are_refused(draft_length: int) -> None:
    config = EngineConfig.build(environ={}, model=str(TINY_A), draft_length=draft_length)
    with pytest.raises(ConfigError, match=rf"draft_length is {draft_length}.*3"):
        build_engine(config)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_staircase_is_climbed_to_the_best_step(is_async: bool, chain: Chain) -> None:
    """Nine to sixteen rows take twice the time of eight, but up to twenty-four take hardly more."""
    curve = [(4, MINUTE), (8, 1.05 * MINUTE), (16, 2.1 * MINUTE), (24, 2.15 * MINUTE)]
    confidences = [[0.95] * 5] * 4
    low, step, descent, top = (throughput(confidences, size, curve) for size, _ in curve)
    assert low < step > descent
    assert top > step
    served = serve_confident(chain, confidences, curve, is_async)
    assert lengths_in_the_middle(served) == {(6, 6, 6, 6)}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("doubtful", [[0.5, 0.4, 0.3, 0.2, 0.1], [0.02] * 5])
def test_doubtful_drafts_are_never_computed(is_async: bool, doubtful: list[float], chain: Chain) -> None:
    curve = [(size, MINUTE * (8 + size)) for size in range(4, 25)]
    confidences = [[0.95] * 5, doubtful, [0.9, 0.9, 0.9, 0.1, 0.9], doubtful]
    wanted = best_lengths(confidences, curve)
    served = serve_confident(chain, confidences, curve, is_async)
    assert wanted[0] == 6
    assert max(wanted[1:]) < 6
    assert lengths_in_the_middle(served) == {tuple(wanted)}
    assert served.rows_computed == [record.plan.num_batched_tokens for record in served.steps]
    assert served.rows_computed.count(sum(wanted)) > 3


def serve_confident(
    chain: Chain, confidences: Sequence[Sequence[float]], curve: Sequence[tuple[int, float]], is_async: bool
) -> Served:
    """One request for each row of confidences, as long as the first."""
    return serve(
        *chain,
        [[5 + number] for number in range(len(confidences))],
        SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
        confide=confident(confidences),
        step_times=curve,
        variable_length=True,
        async_scheduling=is_async,
        max_num_seqs=len(confidences),
        max_model_len=128,
    )


def lengths_in_the_middle(served: Served) -> set[tuple[int, ...]]:
    """Verify lengths by sequence, of steps in which everybody runs and no draft is padding any more."""
    lengths = []
    for record in served.steps[4:]:
        by_sequence = dict(zip(record.plan.sequence_ids.tolist(), record.outcome.num_verified.tolist(), strict=True))
        lengths.append(tuple(by_sequence.get(sequence, 0) for sequence in range(len(served.texts))))
    return {one for one in lengths if min(one) > 0}
