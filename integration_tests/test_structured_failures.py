"""A matcher that breaks, a grammar that cannot be compiled or takes too long end their own request and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from structured_testing import tabled, tiny
from structured_testing.cases import endless, json_case
from structured_testing.compiler import LocalCompiler
from structured_testing.failing import FailingMatcher, Fault
from structured_testing.letters import ids, vocabulary
from structured_testing.verdicts import judge
from thalweg.interfaces import GrammarSpec, Matcher, SamplingParams

HEALTHY = (GrammarSpec.regex("[a-f]{9,20}"), None, GrammarSpec.ebnf('root ::= "(" root ")" | [a-f]{4,20}'))
VICTIM = GrammarSpec.regex("[g-q]{20}")
NUM_GOOD = 8
FAILED = "structured_output_failed"


@pytest.mark.parametrize("has_drafts", [False, True], ids=["plain", "drafted"])
@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
def test_a_matcher_that_breaks_ends_its_own_request_in_the_middle(is_async: bool, has_drafts: bool) -> None:
    faults: tuple[Fault, ...] = get_args(Fault)
    specs = (*HEALTHY, *(replace(VICTIM, source=f"[g-q]{{{20 + place}}}") for place in range(len(faults))))
    wanted = [
        (ids(f"say {number}"), SamplingParams(temperature=0.9, seed=number, max_tokens=30, structured=spec))
        for number, spec in enumerate(specs)
    ]
    used = tabled.setup(4, verification="coupled")
    whole = tabled.serve(used, wanted)

    def wrap(spec: GrammarSpec, matcher: Matcher) -> Matcher:
        place = specs.index(spec) - len(HEALTHY)
        return matcher if place < 0 else FailingMatcher(matcher, faults[place], NUM_GOOD)

    broken = replace(used, compiler=LocalCompiler(vocabulary(), wrap=wrap), is_async=is_async)
    drafter = tabled.drafter_of(wanted, whole.finals) if has_drafts else None
    run = tabled.serve(broken, wanted, drafter)
    assert run.said[: len(HEALTHY)] == whole.said[: len(HEALTHY)]
    for fault, output, expected in zip(faults, run.finals[len(HEALTHY) :], whole.said[len(HEALTHY) :], strict=True):
        said = output.outputs[0]
        assert said.finish_reason == FAILED, fault
        assert ("not allowed" if fault.startswith("refuses") else "the matcher is gone") in (output.error or "")
        assert 0 < len(said.token_ids) <= NUM_GOOD + 1
        good = said.token_ids[:NUM_GOOD]
        assert good == expected.token_ids[: len(good)]


PERSON = json_case("person", {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]})


def test_neighbours_of_a_grammar_that_compiles_for_ever_and_of_one_that_is_wrong_are_served() -> None:
    """By the processes of a real engine."""
    specs = (None, PERSON.spec, endless(), GrammarSpec.ebnf("root ::= missing"), PERSON.spec)
    params = [SamplingParams(temperature=0, max_tokens=30, structured=spec) for spec in specs]
    expected = [output.outputs[0] for output in tiny.serve(params[:2], arithmetic="float32", max_num_seqs=2)]
    judge(PERSON, expected[1], tiny.compiler().matcher(PERSON.spec), tiny.compiler().vocabulary.end_token_id)
    with tiny.engine(arithmetic="float32", has_processes=True, max_num_seqs=2) as engine:
        for number, param in enumerate(params):
            engine.add_request(str(number), tiny.PROMPT, tiny.biased(param))
        finals = tiny.run(engine, 4)
        assert engine.num_compiling == 1
        engine.abort_request("2")
        finals |= tiny.run(engine, 1)
    said = {name: output.outputs[0] for name, output in finals.items()}
    assert [said["0"], said["1"], said["4"]] == [*expected, expected[1]]
    assert (said["2"].finish_reason, said["3"].finish_reason) == ("abort", FAILED)
    assert "missing" in (finals["3"].error or "")
    assert said["2"].token_ids == said["3"].token_ids == ()
