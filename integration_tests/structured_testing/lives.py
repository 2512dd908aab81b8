"""Constrained requests from compilation to end, disturbed at every step: who is aborted, when, and in which phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np

from drafts_testing.bench import Bench, Request
from structured_testing import tabled
from structured_testing.compiler import LocalCompiler
from structured_testing.drafter import GrammarDrafter, Known
from structured_testing.failing import FailingMatcher
from structured_testing.letters import VOCAB, id_of, ids, vocabulary
from thalweg.engine import LLMEngine
from thalweg.interfaces import GrammarSpec, Matcher, RequestOutput, SamplingParams

NUM_HEALTHY, NUM_VICTIMS = 9, 24
RELEASE_STEP = 9
TIGHT: dict[str, Any] = {
    "max_num_seqs": 5,
    "max_model_len": 96,
    "chunked_prefill": True,
    "max_num_batched_tokens": 32,
    "prefill_interval_all": 2,
    "prefill_interval_continue": 1,
    "prefill_interval_any": 2,
}
"""Few at a time, prompts in pieces."""
NUM_BLOCKS = 20
HELD_WHITESPACE = 3
"""A limit that no other specification has: its grammar is kept back for a while."""
NUM_GOOD = 6
"""Tokens after which a matcher fails."""
WHILE_ANOTHER_FAILS = "while another fails"
PHASES = (
    *("compiling", "queued", "between chunks", "at the first token", "decoding", "in flight", "preempted"),
    WHILE_ANOTHER_FAILS,
)
FAILING = GrammarSpec.regex("[g-q]{30}")
NO_GRAMMAR = GrammarSpec.ebnf("root ::= missing")
_LIST: Mapping[str, Any] = {"type": "array", "items": {"enum": ["a", "b", 1, None]}, "minItems": 8, "maxItems": 12}
SPECS = (
    GrammarSpec.json(_LIST, max_whitespace=1),
    GrammarSpec.json(_LIST, max_whitespace=HELD_WHITESPACE),
    GrammarSpec.regex("[a-f]{15,30}", trigger_token_ids=(id_of(">"),), bound_token_id=id_of("]")),
    None,
    GrammarSpec.ebnf('root ::= "(" root ")" | [a-f]{18,20}'),
)


def requests(count: int, first: int = 0) -> list[Request]:
    """Long prompts, every kind of constraint in turn, and none."""
    return [
        (
            ids(f"prompt number {number} " + "of many " * (number % 4)),
            SamplingParams(temperature=0.8, max_tokens=40, seed=number, structured=SPECS[number % len(SPECS)]),
        )
        for number in range(first, first + count)
    ]


@cache
def healthy_outputs(seed: int) -> list[RequestOutput]:
    """What the requests that are left alone say when nothing disturbs them and there is room for all."""
    return tabled.serve(tabled.setup(seed, verification="coupled"), requests(NUM_HEALTHY)).finals


@dataclass
class Disturbed:
    """What became of requests, and in which phases others were disturbed."""

    healthy: list[RequestOutput]
    aborted: list[RequestOutput]
    failing: RequestOutput
    without_grammar: RequestOutput
    aborts: Counter[str] = field(default_factory=Counter)
    """By phase."""
    num_cancelled: int = 0
    num_preemptions: int = 0


def disturb(seed: int, *, has_drafts: bool, **changes: Any) -> Disturbed:
    """Serve healthy requests beside some that fail, and victims that are aborted in the phases in turn."""
    compiler = LocalCompiler(
        vocabulary(),
        is_held=lambda spec: spec.max_whitespace == HELD_WHITESPACE,
        wrap=lambda spec, matcher: _wrapped(spec, matcher),
    )
    failing = [(ids("fails"), SamplingParams(structured=spec, max_tokens=40)) for spec in (FAILING, NO_GRAMMAR)]
    healthy, victims = requests(NUM_HEALTHY), requests(NUM_VICTIMS, first=NUM_HEALTHY)
    wanted = failing + [request for both in zip_longest(healthy, victims) for request in both if request is not None]
    names = [str(wanted.index(victim)) for victim in victims]
    fates = {name: PHASES[number % len(PHASES)] for number, name in enumerate(names)}
    patience = dict(zip(names, np.random.default_rng(seed).integers(0, 4, NUM_VICTIMS).tolist(), strict=True))
    numbers = [wanted.index(request) for request in healthy]
    drafter = GrammarDrafter(tabled.DRAFTS, VOCAB, {}, seed=seed) if has_drafts else None
    aborts = Counter[str]()

    def act(bench: Bench, step: int) -> None:
        if step >= RELEASE_STEP:
            compiler.release()
        if drafter is not None:
            _tell(drafter, bench.engine, dict(zip(numbers, healthy_outputs(seed), strict=True)))
        for name, phase in fates.items():
            if phase_of(bench.engine, name) != phase and not (
                phase == WHILE_ANOTHER_FAILS and _fails_soon(bench.engine)
            ):
                continue
            patience[name] -= 1
            if patience[name] < 0 or phase not in ("queued", "decoding", "in flight"):
                aborts[phase] += bench.engine.abort_request(name)

    used = tabled.setup(
        seed, verification="coupled", compiler=compiler, num_blocks=NUM_BLOCKS, options=TIGHT, **changes
    )
    finals = tabled.serve(used, wanted, drafter, act).finals
    assert compiler.is_closed
    return Disturbed(
        [finals[number] for number in numbers],
        [finals[int(name)] for name in names],
        finals[0],
        finals[1],
        aborts,
        compiler.num_cancelled,
        sum(output.metrics.num_preemptions for output in finals if output.metrics),
    )


def phase_of(engine: LLMEngine, name: str) -> str:
    """Where a request stands."""
    request = engine._table.by_request(name)
    if request is None:
        return "over"
    output = request.outputs[0]
    if output.sequence_id < 0:
        return "compiling"
    state = engine.scheduler.debug_state()
    sequence = state["sequences"][output.sequence_id]
    if not output.token_ids:
        return "between chunks" if sequence["num_computed"] else "queued"
    if output.sequence_id in state["waiting"]:
        return "preempted"
    if len(output.token_ids) == 1:
        return "at the first token"
    return "in flight" if sequence["total_inflight"] else "decoding"


def _fails_soon(engine: LLMEngine) -> bool:
    """Whether the first request, whose matcher breaks, is about to find out."""
    request = engine._table.by_request("0")
    return request is not None and len(request.outputs[0].token_ids) >= NUM_GOOD - 1


def _wrapped(spec: GrammarSpec, matcher: Matcher) -> Matcher:
    return FailingMatcher(matcher, "raises when it fills", NUM_GOOD) if spec == FAILING else matcher


def _tell(drafter: GrammarDrafter, engine: LLMEngine, outputs: Mapping[int, RequestOutput]) -> None:
    """What the healthy ones say, once they have sequences; of others the drafter knows nothing."""
    for number, expected in outputs.items():
        request = engine._table.by_request(str(number))
        if request is None or request.outputs[0].sequence_id in drafter.texts or request.outputs[0].sequence_id < 0:
            continue
        spec = request.params.structured
        matcher = None if spec is None else tabled.shared_compiler().matcher(spec)
        prompt = len(request.prompt_token_ids)
        drafter.texts[request.outputs[0].sequence_id] = Known(prompt, expected.outputs[0].token_ids, matcher)


def without_metrics(outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
    """Nothing of how long it took and how often it was recomputed."""
    return [replace(output, request_id="", metrics=None) for output in outputs]


def check(run: Disturbed, seed: int) -> None:
    """Those that were left alone say what they say undisturbed; the others ended as they had to."""
    assert without_metrics(run.healthy) == without_metrics(healthy_outputs(seed))
    assert run.num_preemptions > 0
    assert run.without_grammar.outputs[0].finish_reason == "structured_output_failed"
    assert "missing" in (run.without_grammar.error or "")
    assert run.failing.outputs[0].finish_reason == "structured_output_failed"
    assert "the matcher is gone" in (run.failing.error or "")
    assert len(run.failing.outputs[0].token_ids) <= NUM_GOOD + 1
    num_aborted = sum(output.outputs[0].finish_reason == "abort" for output in run.aborted)
    assert num_aborted == run.aborts.total() > 0
    assert run.num_cancelled <= run.aborts["compiling"]
