"""A random model with a drafter, served in many ways under the eyes of a witness."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from determinism_testing.witness import Witness
from drafts_testing.pieces import cut_prompts
from rollback_testing.models import TWO_LAYERS
from thalweg.engine import EngineConfig, SamplingParams, build_engine
from thalweg.model import DraftNetwork, Model, small_config, write_random_checkpoint

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


def write_checkpoint(path: Path) -> None:
    """Window 8, both ratios, an indexer that chooses, Engram, and two draft layers for up to five drafts."""
    windows = {"sliding_window": 8, "index_topk": 16}
    drafts = {"num_nextn_predict_layers": 2, "dspark_block_size": 5, "dspark_target_layer_ids": [0, 1]}
    write_random_checkpoint(path, small_config(**TWO_LAYERS, **windows, **drafts), seed=9)


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
    max_tokens: int = MAX_TOKENS,
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
        (str(number), prompt(number, length), SamplingParams(temperature=0.8, seed=number, max_tokens=max_tokens))
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
