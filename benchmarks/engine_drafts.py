"""The CPU engine with and without drafts: the embedded checkpoint's dimensions with a drafter, random weights, G = 5.

Random weights accept next to no draft, so tokens/s fall; what a step costs does not depend on that. A step with drafts
has 6 rows of each sequence where one without has 1. "whole step" is its time as a multiple of the time without drafts.
"% added" is what drafting and verifying alone add: the time of the sample stage beyond that of plain draws, as a part
of the rest of the device's work, which is the forward pass over those rows, and plain draws.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Row, arguments, publish

from thalweg.engine import LLM, LLMEngine, SamplingParams
from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import StepKind
from thalweg.model import ModelConfig, small_config, write_random_checkpoint
from thalweg.tiny import checkpoint_path

BATCHES = (1, 8, 32)
PROMPT_TOKENS = 64
DECODE_STEPS = 12
DRAFTS = 5
DRAFT_LAYERS = 1
SETTINGS: dict[str, dict[str, Any]] = {
    "no drafts": {"draft_length": 0},
    "rejection": {"verification": "rejection"},
    "coupled": {"verification": "coupled"},
    "rejection, varying": {"verification": "rejection", "variable_length": True},
}


def embedded_config() -> ModelConfig:
    """That of the embedded checkpoint, and a drafter in the same proportions."""
    document = json.loads((checkpoint_path() / "config.json").read_text(encoding="utf-8"))
    text = document["text_config"]
    layers = text["num_hidden_layers"]
    text |= {
        "num_nextn_predict_layers": DRAFT_LAYERS,
        "compress_ratios": [*text["compress_ratios"][:layers], *[0] * DRAFT_LAYERS],
        "dspark_block_size": DRAFTS,
        "dspark_markov_rank": text["hidden_size"] // 4,
        "dspark_n_routed_experts": text["n_routed_experts"],
        "dspark_num_experts_per_tok": text["num_experts_per_tok"],
        "dspark_noise_token_id": 3,
        "dspark_target_layer_ids": [layers - 3, layers - 2, layers - 1],
    }
    return ModelConfig.from_dict(document)


def measure(engine: LLMEngine, batch: int, temperature: float, prompt_tokens: int, steps: int) -> Row:
    """Means over decode steps of a full batch. The first one, which has no drafts yet, only warms up."""
    decodes: list[StepRecord] = []
    engine.statistics.on_step(lambda record: decodes.append(record) if record.plan.kind is StepKind.DECODE else None)
    serve(engine, batch, temperature, prompt_tokens, steps + 1)
    timed = decodes[1 : steps + 1]
    assert all(record.plan.sequence_ids.size == batch for record in timed)
    step_ms = sum(record.step_ms for record in timed) / steps
    forward_ms = sum(record.forward_ms for record in timed) / steps
    sample_ms = sum(record.sampler_ms for record in timed) / steps
    return {
        "steps/s": 1000 / step_ms,
        "ms per step": step_ms,
        "rows per step": sum(int(record.outcome.num_verified.sum()) for record in timed) / steps,
        "accepted length": sum(int(record.outcome.num_accepted.sum()) for record in timed) / (batch * steps),
        "tokens/s": sum(record.outcome.token_ids.size for record in timed) / (step_ms * steps / 1000),
        "forward ms": forward_ms,
        "sample ms": sample_ms,
        "% sampling": 100 * sample_ms / step_ms,
    }


def serve(engine: LLMEngine, batch: int, temperature: float, prompt_tokens: int, num_decodes: int) -> None:
    """Prefill a batch, decode it that many times, and end it."""
    generator = np.random.default_rng(batch)
    names = [str(index) for index in range(batch)]
    vocab_size = engine.tokenizer.vocab_size
    longest = (1 + DRAFTS) * (num_decodes + 2)  # nothing ends before the last step that counts
    for index, name in enumerate(names):
        params = SamplingParams(temperature=temperature, seed=index, top_p=0.95, max_tokens=longest, ignore_eos=True)
        engine.add_request(name, generator.integers(5, vocab_size, prompt_tokens).tolist(), params)
    totals = engine.statistics.totals
    start = totals.num_decode_steps
    while totals.num_decode_steps < start + num_decodes:
        engine.step()
    engine.abort_request(names)
    while engine.has_unfinished():
        engine.step()


def rows_of(
    path: Path, arithmetic: str, temperature: float, batches: tuple[int, ...], prompt_tokens: int, steps: int
) -> Iterator[Row]:
    """A row per setting and batch; the last columns compare with the step without drafts, which comes first."""
    plain: dict[int, Row] = {}
    for setting, options in SETTINGS.items():
        with LLM(path, arithmetic=arithmetic, max_num_seqs=max(batches), max_model_len=256, **options) as llm:
            for batch in batches:
                serve(llm.engine, batch, temperature, prompt_tokens, 2)
                row = measure(llm.engine, batch, temperature, prompt_tokens, steps)
                yield {
                    "temperature": temperature,
                    "drafts": setting,
                    "batch": batch,
                    **row,
                    **compare(row, plain.setdefault(batch, row)),
                }


def compare(row: Row, plain: Row) -> Row:
    """What drafts add to the sample stage, and the whole step as a multiple of the plain one, which has none."""
    added_ms = float(row["sample ms"]) - float(plain["sample ms"])
    return {
        "% added": 100 * added_ms / (float(row["forward ms"]) + float(plain["sample ms"])),
        "whole step": float(row["ms per step"]) / float(plain["ms per step"]),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--arithmetic", choices=("exact", "float32"), default="float32")
    parser.add_argument("--threads", type=int, help="threads of torch; one per core if not given, 1 with --smoke")
    options = parser.parse_args()
    torch.set_num_threads(options.threads or (1 if options.smoke else os.cpu_count() or 1))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        if options.smoke:
            write_random_checkpoint(path, small_config(num_nextn_predict_layers=DRAFT_LAYERS))
            rows += rows_of(path, options.arithmetic, 1.0, (1,), 8, 2)
        else:
            write_random_checkpoint(path, embedded_config())
            for temperature in (1.0, 0.0):
                rows += rows_of(path, options.arithmetic, temperature, BATCHES, PROMPT_TOKENS, DECODE_STEPS)
    publish(rows, options.json)


if __name__ == "__main__":
    main()
