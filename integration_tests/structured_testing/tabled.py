"""Constrained requests over tables: steps of milliseconds, everything around the network real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from accepted_runs_testing import watched
from accepted_runs_testing.watched import Act, Watched
from drafts_testing.bench import Request, Setup
from structured_testing.compiler import LocalCompiler
from structured_testing.drafter import GrammarDrafter, Known
from structured_testing.letters import VOCAB, tables, tokenizer, vocabulary
from thalweg.interfaces import RequestOutput

DRAFTS = 5
ROOMY = {"max_num_seqs": 128, "max_model_len": 256}


@cache
def shared_compiler() -> LocalCompiler:
    """Keeps what was compiled for all tests."""
    return LocalCompiler(vocabulary())


def setup(seed: int = 0, **changes: Any) -> Setup:
    """Tables of this seed that speak the vocabulary of letters, without drafts."""
    options = ROOMY | dict(changes.pop("options", {}))
    made = Setup(target=tables(seed), tokenizer=tokenizer(), compiler=shared_compiler(), options=options)
    return replace(made, **changes)


def serve(
    used: Setup, requests: Sequence[Request], drafter: GrammarDrafter | None = None, act: Act | None = None
) -> Watched:
    """What requests say and in which runs; with a drafter, by its drafts. act: what happens before which step."""
    if drafter is not None:
        used = replace(used, draft_length=drafter.draft_length, drafter_type=lambda *_: drafter)  # type: ignore[arg-type]
    return watched.serve(used, requests, act)


def num_held(run: Watched) -> int:
    """Drafts that held."""
    return sum(each.num_accepted - 1 for runs in run.runs for each in runs if each.is_decode)


def drafter_of(requests: Sequence[Request], outputs: Sequence[RequestOutput], **options: Any) -> GrammarDrafter:
    """Knows these outputs, one per request, if all come at once: requests without a grammar have sequences first."""
    both = sorted(zip(requests, outputs, strict=True), key=lambda pair: pair[0][1].structured is not None)
    texts = {}
    for number, ((prompt, params), output) in enumerate(both):
        matcher = None if params.structured is None else shared_compiler().matcher(params.structured)
        texts[number] = Known(len(prompt), output.outputs[0].token_ids, matcher)
    return GrammarDrafter(DRAFTS, VOCAB, texts, **options)
