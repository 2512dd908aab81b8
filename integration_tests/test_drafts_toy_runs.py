"""Recorded runs of a model that is a table, through the whole engine: tokens, drafts, accepted lengths, step by step.

They were recorded with draft positions by index, and a draft at a probability that its own coin decides.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafts_testing import budgets
from drafts_testing.bench import EOS, Bench, Request, Setup
from drafts_testing.tables import Tables
from thalweg.interfaces import SamplingParams

GOLDEN = Path(__file__).parent / "golden"
RUNS = json.loads((GOLDEN / "toy_lm_runs.json").read_text())
CASES: list[dict[str, Any]] = RUNS["cases"]


@cache
def tables() -> tuple[Tables, Tables]:
    arrays = np.load(GOLDEN / "toy_lm_tables.npz")
    return Tables(torch.from_numpy(arrays["target"])), Tables(torch.from_numpy(arrays["draft"]))


def bench_for(draft_length: int, plan: list[int] | None, *, is_async: bool, max_num_seqs: int) -> Bench:
    target, drafts = tables()
    bench = Bench(
        Setup(
            target=target,
            drafts=drafts,
            draft_length=draft_length,
            draft_positions="absolute",
            budget=None if plan is None else lambda: budgets.planned(plan),
            is_async=is_async,
            options={"max_num_seqs": max_num_seqs, "max_model_len": 4096, "max_num_batched_tokens": 40_000},
        )
    )
    bench.keep_records()
    return bench


def request(case: dict[str, Any]) -> Request:
    asked = case["request"]
    prompt = [3] * (asked["prompt_len"] - 1) + [asked["last_prompt_token"]]
    names = ("temperature", "top_p", "top_k", "max_tokens", "ignore_eos")
    return prompt, SamplingParams(seed=int(asked["seed"]), **{name: asked[name] for name in names})


def steps_of(bench: Bench) -> list[dict[str, Any]]:
    """The decode steps of a bench with one request, in the words of the recording."""
    steps = []
    for record in bench.records:
        plan, outcome = record.plan, record.outcome
        if plan.token_ids.size or not plan.sequence_ids.size or not outcome.token_ids.size:
            continue
        steps.append(
            {
                "q": int(outcome.num_verified[0]),
                "drafts": plan.draft_token_ids[0].tolist(),
                "accepted": int(outcome.num_accepted[0]) - 1,
                "emitted": outcome.token_ids.size,
                "start_position": int(plan.context_lengths[0] - plan.query_lengths[0]),
            }
        )
    return steps


def test_the_recording_is_of_this_vocabulary() -> None:
    assert (RUNS["vocab"], RUNS["eos"], RUNS["pad_token"]) == (tables()[0].vocab_size, EOS, tables()[0].vocab_size - 1)
    assert len(CASES) == 34


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_recorded_run_is_repeated_step_by_step(number: int) -> None:
    case = CASES[number]
    bench = bench_for(case["nextn"], case["q_plan"], is_async=False, max_num_seqs=1)
    with bench.engine:
        (output,) = bench.serve([request(case)])
    assert list(output.outputs[0].token_ids) == case["tokens"]
    recorded = [{**step, "drafts": step["drafts"][: case["nextn"]]} for step in case["steps"]]
    assert steps_of(bench) == recorded


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("draft_length", sorted({case["nextn"] for case in CASES}))
def test_recorded_runs_of_one_length_are_repeated_in_one_batch(draft_length: int, is_async: bool) -> None:
    cases = [case for case in CASES if case["nextn"] == draft_length and case["q_plan"] is None]
    bench = bench_for(draft_length, None, is_async=is_async, max_num_seqs=len(cases))
    with bench.engine:
        outputs = bench.serve([request(case) for case in cases])
    assert [list(output.outputs[0].token_ids) for output in outputs] == [case["tokens"] for case in cases]


@pytest.mark.parametrize("number", [number for number, case in enumerate(CASES) if case["q_plan"]])
def test_recorded_plans_are_repeated_with_steps_that_overlap(number: int) -> None:
    case = CASES[number]
    bench = bench_for(case["nextn"], case["q_plan"], is_async=True, max_num_seqs=1)
    with bench.engine:
        (output,) = bench.serve([request(case)])
    assert list(output.outputs[0].token_ids) == case["tokens"]
