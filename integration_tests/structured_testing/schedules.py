"""Random constrained and free requests in every schedule, with drafts of every kind: what they say never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from drafts_testing.bench import EOS, Request
from drafts_testing.workloads import schedules
from structured_testing import tabled
from structured_testing.cases import CORPUS, Case
from structured_testing.letters import VOCAB, ids
from structured_testing.verdicts import count_ends, judge
from thalweg.interfaces import GrammarSpec, SamplingParams


def check(seed: int, num_requests: int, ways: Collection[str] = ()) -> Counter[str]:
    """Serve random requests without drafts, and with them in these ways of `schedules`, by default in all of them.

    How often interesting things happened.
    """
    random = np.random.default_rng(seed)
    rule: Any = ("rejection", "coupled")[seed % 2]
    cases = [CORPUS[number] for number in random.integers(0, len(CORPUS), num_requests)]
    wanted = [_request(random, case, is_greedy=rule == "rejection") for case in cases]
    used = tabled.setup(seed, verification=rule)
    plain = tabled.serve(used, wanted)
    for case, (_, params), said in zip(cases, wanted, plain.said, strict=True):
        if params.structured == case.spec and not params.ignore_eos:
            judge(case, said, tabled.shared_compiler().matcher(case.spec), EOS)
    drafted = replace(used, draft_length=tabled.DRAFTS, options={"max_model_len": 256})
    every = schedules(drafted, lengths_vary=True, preempts=True)
    seen = count_ends(plain.said)
    for number, way in enumerate(ways or every):
        drafter = tabled.drafter_of(wanted, plain.finals, seed=seed + number)
        run = tabled.serve(every[way], wanted, drafter)
        assert run.said == plain.said, (seed, way)
        seen += drafter.seen
        seen["held"] += tabled.num_held(run)
        seen["preempted"] += sum(output.metrics.num_preemptions for output in run.finals if output.metrics)
    return seen


def _request(random: np.random.Generator, case: Case, *, is_greedy: bool) -> Request:
    """Constrained from the first token on, after a trigger, after a bound, or not at all."""
    spec: GrammarSpec | None = case.spec
    kind = random.random()
    if kind < 0.15:
        spec = None
    elif kind < 0.5:
        letters = [int(token) for token in random.integers(3, VOCAB, int(random.integers(1, 4)))]
        bounds = int(random.integers(3, VOCAB))
        spec = replace(case.spec, trigger_token_ids=letters, bound_token_id=bounds if kind < 0.4 else None)
    params = SamplingParams(
        temperature=0.0 if is_greedy else float(random.choice([0.0, 0.6, 1.0, 2.0])),
        max_tokens=int(random.integers(1, 60)),
        seed=int(random.integers(2**63)),
        ignore_eos=bool(random.random() < 0.2),
        frequency_penalty=float(random.choice([0.0, 0.5])),
        structured=spec,
    )
    return ids("say something"[: int(random.integers(1, 14))]), params
