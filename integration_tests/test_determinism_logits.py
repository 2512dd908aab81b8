"""Logits are a function of the text before them, bit for bit: of the model with its cache, served in every way.

Every row of every step is compared with all rows that any other way has computed after the same text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from determinism_testing.witness import Witness
from thalweg.engine import EngineConfig, SamplingParams, build_engine
from thalweg.kernels import bind
from thalweg.model import DraftNetwork, Model, small_config, write_random_checkpoint

NUMBERS = [("quant", "exact"), ("quant", "float32"), ("plain", "exact"), ("plain", "float32")]
PROMPT_LENGTHS = (3, 40, 1, 126, 17, 25)
MAX_TOKENS = 8
WAYS: dict[str, dict[str, Any]] = {
    "one after the other": {"max_num_seqs": 1},
    "padded to 8": {"padded_to": 8},
    "padded to 33, with drafts": {"padded_to": 33, "draft_length": 2},
    "reversed, with drafts, overlapping": {"is_reversed": True, "draft_length": 5, "async_scheduling": True},
    "pieces of nine, small batches": {"chunk": 9, "max_num_seqs": 3, "draft_length": 1},
    "pieces of eleven, overlapping, padded": {"chunk": 11, "async_scheduling": True, "padded_to": 16},
    "among others": {"num_others": 12, "draft_length": 3},
    "recomputed": {"num_blocks": 5, "max_num_seqs": 6, "prefill_interval_all": 2, "draft_length": 3},
    "recomputed, overlapping, no drafts": {"num_blocks": 5, "prefill_interval_all": 2, "async_scheduling": True},
}
CASES = [(mode, arithmetic, way) for mode, arithmetic in NUMBERS for way in list(WAYS)[:: 3 if mode == "plain" else 1]]
"""All ways with quantised values, every third one without."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Window 8, both ratios, an indexer that chooses, Engram, and two draft layers for up to five drafts."""
    path = tmp_path_factory.mktemp("determinism") / "checkpoint"
    layout: dict[str, Any] = {
        "num_hidden_layers": 2,
        "compress_ratios": [2, 1],
        "kv_source_layer_ids": [0, 1],
        "index_source_layer_ids": [0, 1],
        "candidate_source_layer_id": 1,
        "engram_layer_ids": [1],
        "sliding_window": 8,
        "index_topk": 16,
        "num_nextn_predict_layers": 2,
        "dspark_block_size": 5,
        "dspark_target_layer_ids": [0, 1],
    }
    write_random_checkpoint(path, small_config(**layout), seed=9)
    return path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompt(number: int, length: int) -> list[int]:
    choose = random.Random(number)
    return [choose.randrange(5, 512) for _ in range(length)]


def serve(
    path: Path,
    model: Model,
    network: DraftNetwork,
    witness: Witness,
    *,
    padded_to: int = 0,
    chunk: int = 0,
    is_reversed: bool = False,
    num_others: int = 0,
    draft_length: int = 0,
    **options: Any,
) -> tuple[list[tuple[int, ...]], int]:
    """Tokens of the watched requests, and preemptions. chunk: where pieces of prompts end."""
    settled: dict[str, Any] = {
        "max_model_len": 200,
        "max_num_seqs": 24,
        "stop_preempted_request": False,
        "verification": "coupled",
    }
    settled |= options
    if chunk:
        settled |= {"chunked_prefill": True, "max_num_batched_tokens": 128, "prefill_interval_all": 1}
    config = EngineConfig.build(
        environ={},
        model=path,
        mode=model.numerics.mode.value,
        arithmetic=model.numerics.arithmetic.value,
        batch_invariant=True,
        check_lengths=True,
        draft_length=draft_length,
        **settled,
    )
    requests = [
        (str(number), prompt(number, length), SamplingParams(temperature=0.8, seed=number, max_tokens=MAX_TOKENS))
        for number, length in enumerate(PROMPT_LENGTHS)
    ]
    requests = requests[::-1] if is_reversed else requests
    for number in range(num_others):
        other = f"other {number}", prompt(100 + number, 1 + 5 * number), SamplingParams(max_tokens=4)
        requests.insert(2 * number, other)
    with (
        witness.watching(padded_to=padded_to),
        build_engine(config, model=model, draft_network=network if draft_length else None) as engine,
    ):
        if chunk:
            cut_prompts(engine.scheduler, chunk)
        finals = {}
        for request in requests:
            engine.add_request(*request)
        while engine.has_unfinished():
            finals |= {output.request_id: output for output in engine.step() if output.finished}
        assert engine.failure is None, engine.failure
    outputs = [finals[str(number)] for number in range(len(PROMPT_LENGTHS))]
    num_preemptions = sum(output.metrics.num_preemptions for output in outputs if output.metrics)
    return [output.outputs[0].token_ids for output in outputs], num_preemptions


def cut_prompts(scheduler: Any, size: int) -> None:
    """End a piece of every prompt at each multiple, through the checkpoints that a store would ask for."""
    add = scheduler.add
    scheduler.add = lambda ids, **rest: add(ids, **rest, checkpoints=tuple(range(size, len(ids), size)))


class Scene:
    """A model in one kind of numbers, what it is known to say, and the texts of one batch without drafts."""

    def __init__(self, path: Path, mode: str, arithmetic: str, ops: Any = None) -> None:
        self.path = path
        self.model = Model.load(path, mode=mode, arithmetic=arithmetic, ops=ops)
        self.network = DraftNetwork.load(path, self.model)
        self.witness = Witness()
        self.tokens, _ = self.serve()

    def serve(self, **way: Any) -> tuple[list[tuple[int, ...]], int]:
        return serve(self.path, self.model, self.network, self.witness, **way)


@cache
def scene(path: Path, mode: str, arithmetic: str) -> Scene:
    return Scene(path, mode, arithmetic)


@pytest.mark.parametrize(("mode", "arithmetic", "way"), CASES)
def test_logits_depend_on_the_text_alone(checkpoint: Path, mode: str, arithmetic: str, way: str) -> None:
    here = scene(checkpoint, mode, arithmetic)
    tokens, num_preemptions = here.serve(**WAYS[way])
    assert here.witness.differing == []
    assert tokens == here.tokens
    assert here.witness.num_again >= len(PROMPT_LENGTHS) * MAX_TOKENS / 2
    assert bool(num_preemptions) == ("recomputed" in way)
    assert min(here.witness.num_decode_rows) >= WAYS[way].get("padded_to", 0)


@pytest.mark.parametrize("arithmetic", ["exact", "float32"])
def test_logits_do_not_depend_on_the_number_of_threads(checkpoint: Path, arithmetic: str) -> None:
    here = scene(checkpoint, "quant", arithmetic)
    torch.set_num_threads(2)
    tokens, _ = here.serve(**WAYS["padded to 33, with drafts"])
    assert here.witness.differing == []
    assert tokens == here.tokens
    assert here.witness.num_again


def test_a_product_that_depends_on_the_batch_is_noticed(checkpoint: Path) -> None:
    """In float32: sums of quantised values are exact in float64 nearly always, in any order."""
    ops = bind("cpu")
    ops.__dict__["matmul"] = lambda x, weight: x @ weight.t()
    here = Scene(checkpoint, "quant", "float32", ops)
    here.serve(**WAYS["one after the other"])
    assert here.witness.differing


def test_padding_that_is_not_kept_apart_is_noticed(checkpoint: Path) -> None:
    """A norm that takes the largest value of the batch for its scale."""
    ops = bind("cpu")
    norm = ops.rms_norm
    ops.__dict__["rms_norm"] = lambda x, weight, eps: norm(x, weight, eps + 1e-3 * float(x.abs().max()))
    here = Scene(checkpoint, "plain", "float32", ops)
    here.serve()
    assert here.witness.differing == []
    here.serve(**WAYS["padded to 8"])
    assert here.witness.differing


@pytest.mark.parametrize(
    "way",
    ["one after the other", "reversed, with drafts, overlapping", "pieces of nine, small batches", "among others"],
)
def test_tokens_of_rejection_depend_on_seed_and_draft_length_alone(checkpoint: Path, way: str) -> None:
    """The model with its own drafter. With another length, or without a drafter, texts are others."""
    here = scene(checkpoint, "quant", "exact")
    tokens, _ = here.serve(**WAYS[way] | {"verification": "rejection", "draft_length": 3})
    assert tokens == rejected_tokens(checkpoint)
    assert here.witness.differing == []


@cache
def rejected_tokens(path: Path) -> list[tuple[int, ...]]:
    here = scene(path, "quant", "exact")
    with_one, with_three = (here.serve(verification="rejection", draft_length=length)[0] for length in (1, 3))
    assert with_one != with_three
    assert with_three != here.tokens
    return with_three
