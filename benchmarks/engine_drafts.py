"""What drafts bring the CPU engine on the embedded checkpoint: tokens per step, tokens/s, and what a step costs.

Prompts are short beginnings of code, which is what the checkpoint was trained on: one after another, all at once, and
in a larger batch each several times with other seeds. Every step that counts has a full batch, and a batch goes on
until its sequences have got 48 tokens each in the mean. A step with drafts has 6 rows of each sequence where one
without has 1. "whole step" is its time as a multiple of the time without drafts, "gain" tokens/s as a multiple of those
without. "% added" is what drafting and verifying alone add: the time of the sample stage beyond that of plain draws, as
a part of the rest of the device's work, which is the forward pass over those rows, and plain draws.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from report import Row, arguments, publish

from thalweg.engine import LLM, LLMEngine, SamplingParams
from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import StepKind

BATCHES = (1, 8, 32)
PROMPTS = (
    "def __init__(self, ",
    "import os\nimport sys\n\n\ndef main():\n    ",
    "class TestConnection(unittest.TestCase):\n    def test_",
    "The function returns a list of ",
    "    for key, value in ",
    "    Parameters\n    ----------\n    x : array_like\n        ",
    "def read_lines(path):\n    with open(path) as file:\n        ",
    "    if not isinstance(value, str):\n        raise ",
)
NUM_TOKENS = 48
LONGEST = 4 * NUM_TOKENS
"""Tokens of a sequence whose drafts all hold, while others get few: none may end before the batch does."""
SETTINGS: dict[str, dict[str, Any]] = {
    "no drafts": {"draft_length": 0},
    "rejection": {"verification": "rejection"},
    "coupled": {"verification": "coupled"},
    "rejection, varying": {"verification": "rejection", "variable_length": True},
}


def rows_of(temperature: float, arithmetic: str, batches: Sequence[int], num_tokens: int) -> Iterator[Row]:
    """A row per setting and batch; the last columns compare with the same batch without drafts, which comes first."""
    plain: dict[int, Row] = {}
    for setting, options in SETTINGS.items():
        with LLM(arithmetic=arithmetic, max_num_seqs=max(batches), max_model_len=256, **options) as llm:
            decodes = decode_steps(llm.engine)
            for batch in batches:
                row = figures(served(llm.engine, decodes, batch, temperature, num_tokens), batch)
                compared = compare(row, plain.setdefault(batch, row))
                yield {"temperature": temperature, "drafts": setting, "batch": batch, **row, **compared}


def decode_steps(engine: LLMEngine) -> list[StepRecord]:
    """A list that grows with every decode step of the engine."""
    decodes: list[StepRecord] = []
    engine.statistics.on_step(lambda record: decodes.append(record) if record.plan.kind is StepKind.DECODE else None)
    return decodes


def served(
    engine: LLMEngine, decodes: list[StepRecord], batch: int, temperature: float, num_tokens: int
) -> list[StepRecord]:
    """Decode steps of all prompts in batches of this size. decodes: those of the engine, see `decode_steps`."""
    prompts = PROMPTS * -(-batch // len(PROMPTS))
    timed: list[StepRecord] = []
    for first in range(0, len(prompts), batch):
        names = [str(index) for index in range(first, first + batch)]
        for name in names:
            params = SamplingParams(
                temperature=temperature, seed=int(name), top_p=0.95, max_tokens=LONGEST, ignore_eos=True
            )
            engine.add_request(name, prompts[int(name)], params)
        decodes.clear()
        while num_output(decodes[1:]) < num_tokens * batch:  # the first one has no drafts yet: it only warms up
            engine.step()
        timed += decodes[1:]
        engine.abort_request(names)
        while engine.has_unfinished():
            engine.step()
    assert all(record.plan.sequence_ids.size == batch for record in timed), "a sequence ended, or came later"
    return timed


def num_output(records: Sequence[StepRecord]) -> int:
    return sum(record.num_output_tokens for record in records)


def figures(records: Sequence[StepRecord], batch: int) -> Row:
    """Means over steps of this many sequences."""
    steps = len(records)
    step_ms = sum(record.step_ms for record in records) / steps
    return {
        "tokens per step": num_output(records) / (batch * steps),
        "tokens/s": 1000 * num_output(records) / (step_ms * steps),
        "ms per step": step_ms,
        "rows per step": sum(int(record.outcome.num_verified.sum()) for record in records) / steps,
        "forward ms": sum(record.forward_ms for record in records) / steps,
        "sample ms": sum(record.sampler_ms for record in records) / steps,
    }


def compare(row: Row, plain: Row) -> Row:
    """What drafts add to the sample stage, and step and speed as multiples of the plain ones, which have none."""
    added_ms = float(row["sample ms"]) - float(plain["sample ms"])
    return {
        "% added": 100 * added_ms / (float(row["forward ms"]) + float(plain["sample ms"])),
        "whole step": float(row["ms per step"]) / float(plain["ms per step"]),
        "gain": float(row["tokens/s"]) / float(plain["tokens/s"]),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--arithmetic", choices=("exact", "float32"), default="float32")
    parser.add_argument("--threads", type=int, help="threads of torch; one per core if not given, 1 with --smoke")
    options = parser.parse_args()
    torch.set_num_threads(options.threads or (1 if options.smoke else os.cpu_count() or 1))
    rows: list[Row] = []
    if options.smoke:
        rows += rows_of(1.0, options.arithmetic, (len(PROMPTS),), 2)
    else:
        for temperature in (0.0, 1.0):
            rows += rows_of(temperature, options.arithmetic, BATCHES, NUM_TOKENS)
    publish(rows, options.json)


if __name__ == "__main__":
    main()
