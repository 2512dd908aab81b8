"""Requests that ask for anything at once, and every way to serve them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from accepted_runs_testing.known_texts import changing
from accepted_runs_testing.options import VOCAB
from accepted_runs_testing.twins import DRAFTS, Twins
from accepted_runs_testing.watched import assert_same
from drafts_testing.bench import EOS, Request, Setup
from drafts_testing.tables import Memory, Tables
from drafts_testing.workloads import schedules
from thalweg.interfaces import RequestOutput, SamplingParams

LONGEST = 30


def check(seed: int, num_requests: int, ways: Collection[str] = ()) -> Counter[str]:
    """Serve random requests without drafts and, with drafts, in these ways of `schedules`, by default in all of them.

    How often interesting things happened.
    """
    random = np.random.default_rng(seed)
    target = Tables.random(
        VOCAB, seed, Memory.EVERYTHING, spread=float(random.uniform(0.5, 3)), grain=float(random.choice([0.0, 0.5]))
    )
    rule = ("rejection", "coupled")[seed % 2]
    requests = [make_request(random, is_greedy=rule == "rejection") for _ in range(num_requests)]
    both = Twins(Setup(target=target, verification=rule), requests)  # type: ignore[arg-type]
    every = schedules(replace(both.setup, draft_length=DRAFTS), lengths_vary=True, preempts=True)
    seen = Counter[str]()
    for number, way in enumerate(ways or every):
        setup = every[way]
        drafted = both.drafted(changing(seed + number), **_changes(setup))
        assert_same(_uninterrupted(drafted.finals), _uninterrupted(both.plain.finals), (seed, way))
        seen["preempted"] += sum(output.metrics.num_preemptions for output in drafted.finals if output.metrics)
        runs = [run for runs in drafted.runs for run in runs]
        seen["accepted"] += sum(run.num_accepted - 1 for run in runs if run.is_decode)
        seen["cut"] += sum(run.num_tokens < run.num_accepted for run in runs if run.is_decode)
    return seen


def make_request(random: np.random.Generator, *, is_greedy: bool) -> Request:
    """Each option with a probability of its own; most of them in every third request."""
    max_tokens = int(random.integers(1, LONGEST + 1))
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "seed": int(random.integers(2**63)),
        "temperature": 0.0 if is_greedy else float(random.choice([0.0, 0.5, 1.0, 2.0])),
        "logprobs": int(random.integers(0, VOCAB + 1)),
    }
    words = ["".join(random.choice(list("defghijklmnopqrstuvwx"), int(random.integers(1, 4)))) for _ in range(4)]
    choices: dict[str, Any] = {
        "top_p": float(random.uniform(0.3, 1)),
        "top_k": int(random.integers(1, VOCAB)),
        "min_p": float(random.uniform(0, 0.3)),
        "ignore_eos": True,
        "min_tokens": int(random.integers(0, max_tokens + 1)),
        "stop": tuple(words[:2]),
        "stop_token_ids": tuple(random.integers(3, VOCAB, 2).tolist()),
        "bad_words": tuple(words[1:]),
        "repetition_penalty": float(random.uniform(0.7, 1.8)),
        "presence_penalty": float(random.uniform(-2, 2)),
        "frequency_penalty": float(random.uniform(-1, 2)),
        "logit_bias": dict(zip(random.permutation(VOCAB)[:5].tolist(), random.uniform(-5, 5, 5).tolist(), strict=True)),
    }
    options |= {name: value for name, value in choices.items() if random.random() < 0.35}
    if random.random() < 0.25:
        free = random.random(max_tokens) < 0.7
        ending = {EOS, *options.get("stop_token_ids", ())}
        forced = [-1 if is_free else int(random.integers(VOCAB)) for is_free in free]
        is_early = range(options.get("min_tokens", 0))
        options["forced_token_ids"] = tuple(
            -1 if index in is_early and token in ending else token for index, token in enumerate(forced)
        )
    prompt = random.integers(0, VOCAB, int(random.choice([1, 2, 5, 13, 30]))).tolist()
    return prompt, SamplingParams(**options)


def _changes(setup: Setup) -> dict[str, Any]:
    names = ("is_async", "budget", "step_times", "is_timed", "is_native", "num_blocks", "options")
    return {name: getattr(setup, name) for name in names}


def _uninterrupted(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """As if nobody had been preempted."""
    return [replace(output, metrics=replace(output.metrics, num_preemptions=0)) for output in outputs if output.metrics]
