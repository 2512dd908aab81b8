"""The CPU engine on the embedded checkpoint, without drafts: decode steps/s, prefill tokens/s, share of other work."""

from __future__ import annotations

import os

import numpy as np
import torch
from report import Row, arguments, publish

from thalweg.engine import LLM, LLMEngine, SamplingParams
from thalweg.engine.statistics import StepTotals

BATCHES = (1, 8, 32)
PROMPT_TOKENS = 64
DECODE_STEPS = 20


def measure(engine: LLMEngine, arithmetic: str, batch: int, prompt_tokens: int, decode_steps: int) -> Row:
    """Prefill a batch in one step, then decode it; random prompts, sampled with seeds, no early end."""
    run(engine, batch, prompt_tokens, 2)
    prefill, decode = run(engine, batch, prompt_tokens, decode_steps)
    return {
        "arithmetic": arithmetic,
        "batch": batch,
        "prefill tokens/s": prefill.num_prompt_tokens / prefill.step_s,
        "decode steps/s": decode.num_decode_steps / decode.step_s,
        "decode tokens/s": decode.num_output_tokens / decode.step_s,
        "ms per decode step": 1000 * decode.step_s / decode.num_decode_steps,
        "% outside, prefill": 100 * prefill.share_outside_forward,
        "% outside, decode": 100 * decode.share_outside_forward,
    }


def run(engine: LLMEngine, batch: int, prompt_tokens: int, decode_steps: int) -> tuple[StepTotals, StepTotals]:
    """Totals of the prefill steps and of the decode steps of one batch."""
    generator = np.random.default_rng(batch)
    vocab_size = engine.tokenizer.vocab_size
    names = [str(index) for index in range(batch)]
    for index, name in enumerate(names):
        params = SamplingParams(seed=index, top_p=0.95, max_tokens=decode_steps + 2, ignore_eos=True)
        engine.add_request(name, generator.integers(5, vocab_size, prompt_tokens), params)
    totals = engine.statistics.totals
    start = totals.copy()
    while totals.num_decode_steps == start.num_decode_steps:
        before_step = totals.copy()
        engine.step()
    prefill = before_step.minus(start)
    middle = totals.copy()
    for _ in range(decode_steps):
        engine.step()
    decode = totals.minus(middle)
    assert decode.num_output_tokens == batch * decode_steps
    while engine.has_unfinished():
        engine.step()
    return prefill, decode


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--arithmetic", choices=("exact", "float32"), help="measure only this one")
    parser.add_argument("--threads", type=int, help="threads of torch; one per core if not given, 1 with --smoke")
    options = parser.parse_args()
    batches, prompt_tokens, decode_steps, arithmetics = BATCHES, PROMPT_TOKENS, DECODE_STEPS, ["exact", "float32"]
    if options.smoke:
        batches, prompt_tokens, decode_steps, arithmetics = (1, 2), 8, 2, ["float32"]
    torch.set_num_threads(options.threads or (1 if options.smoke else os.cpu_count() or 1))
    rows = []
    for arithmetic in [options.arithmetic] if options.arithmetic else arithmetics:
        with LLM(arithmetic=arithmetic, draft_length=0, max_num_seqs=max(batches), max_model_len=256) as llm:
            rows += [measure(llm.engine, arithmetic, batch, prompt_tokens, decode_steps) for batch in batches]
    publish(rows, options.json)


if __name__ == "__main__":
    main()
