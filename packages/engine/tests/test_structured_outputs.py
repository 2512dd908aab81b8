"""Outputs that follow their grammars in a whole engine, and fail alone."""

from collections.abc import Collection, Sequence

import numpy as np
import pytest
from engine_testing.bench import LETTERS, MakeBench, params
from engine_testing.first_tokens import FirstTokens
from engine_testing.matchers import Grammar
from engine_testing.served import FAILED, VOWELS, LoneRank, Served, ends

from thalweg.interfaces import GrammarSpec, RequestOutput


def test_every_output_of_a_prompt_follows_the_grammar_by_itself(served: Served) -> None:
    ids = [served.bench.letters[LETTERS.index(letter)] for letter in "aio"]
    FirstTokens(served.bench, lambda seed: ids[seed])
    served.compiler.is_patient = False
    served.add("r", n=3, temperature=1.0, top_k=1, seed=0)
    served.engine.add_request("other", "z", params())
    finals = served.bench.drain()
    assert ends(finals["r"]) == [("aeiou", "stop"), ("iou", "stop"), ("ou", "stop")]
    assert ends(finals["other"]) == [("abcdefgh", "length")]


def test_outputs_that_share_a_prompt_once_more_start_their_grammar_once_more(make_bench: MakeBench) -> None:
    """The bench has five state slots."""
    served = Served(make_bench)
    FirstTokens(served.bench, lambda seed: served.bench.letters[LETTERS.index(VOWELS[seed % 5])])
    served.compiler.is_patient = False
    served.add("r", n=12, temperature=1.0, top_k=1, seed=0)
    final = served.bench.drain()["r"]
    assert ends(final) == [(VOWELS[seed % 5 :], "stop") for seed in range(12)]


def fragile(grammar: Grammar, num_tokens: int) -> Grammar:
    """A grammar that breaks after so many tokens."""

    def allowed(tokens: tuple[int, ...]) -> Collection[int] | None:
        if len(tokens) >= num_tokens:
            raise ValueError(f"worn out after {num_tokens} tokens")
        return grammar(tokens)

    return allowed


@pytest.mark.parametrize("draft_length", [0, 2])
def test_a_grammar_that_fails_on_the_way_ends_its_output_only(make_bench: MakeBench, draft_length: int) -> None:
    served = Served(make_bench, draft_length=draft_length)
    served.compiler.is_patient = False
    for num_tokens in (0, 1, 3):
        name = f"after {num_tokens}"
        served.compiler.grammars[name] = fragile(served.letters(VOWELS), num_tokens)
        served.add(name, name)
    served.add("good")
    finals = served.bench.drain()
    assert ends(finals.pop("good")) == [("aeiou", "stop")]
    for num_tokens, final in zip((0, 1, 3), finals.values(), strict=True):
        ((text, reason),) = ends(final)
        assert reason == FAILED
        assert final.error == f"worn out after {num_tokens} tokens"
        assert VOWELS[:num_tokens].startswith(text)
        assert draft_length or len(text) == num_tokens


def test_a_grammar_that_fails_at_the_end_of_a_shared_prompt_ends_all_its_outputs(served: Served) -> None:
    served.compiler.is_patient = False
    served.compiler.grammars["fragile"] = fragile(served.letters(VOWELS), 0)
    served.add("bad", "fragile", n=3, temperature=1.0)
    served.add("good", n=2, temperature=1.0, top_k=1)
    finals = served.bench.drain()
    assert ends(finals["bad"]) == [("", FAILED)] * 3
    assert finals["bad"].error == "worn out after 0 tokens"
    assert ends(finals["good"]) == [("aeiou", "stop")] * 2


@pytest.mark.parametrize("draft_length", [0, 3])
def test_options_that_leave_the_grammar_no_token_end_the_output_and_keep_what_was_there(
    make_bench: MakeBench, draft_length: int
) -> None:
    served = Served(make_bench, draft_length=draft_length)
    served.compiler.is_patient = False
    only_i = served.bench.letters[8]
    served.compiler.grammars["then i"] = lambda tokens: {only_i} if len(tokens) == 2 else None
    served.add("bad", "then i", bad_words=("i",))
    served.add("too long", min_tokens=7)
    served.add("several", "then i", bad_words=("i",), n=2, temperature=1.0, top_k=1)
    served.add("good")
    finals = served.bench.drain()
    assert ends(finals["bad"]) == [("ab", FAILED)]
    assert finals["bad"].error == "the grammar and the other options of the request leave no token"
    assert ends(finals["too long"]) == [("aeiou", FAILED)]
    assert ends(finals["several"]) == [("ab", FAILED)] * 2
    assert ends(finals["good"]) == [("aeiou", "stop")]


def test_first_tokens_that_no_option_leaves_fail_by_the_grammar(served: Served) -> None:
    served.compiler.is_patient = False
    served.compiler.grammars["b"] = lambda tokens: {served.bench.letters[1]}
    served.add("bad", "b", bad_words=("b",), n=3, temperature=1.0)
    final = served.bench.drain()["bad"]
    assert ends(final) == [("", FAILED)] * 3
    assert "leave no token" in str(final.error)


def test_broken_logits_of_a_constrained_output_are_not_its_grammars_fault(served: Served) -> None:
    served.compiler.is_patient = False
    broken = served.bench.letters[9]
    served.bench.model.broken = lambda token_id: token_id == broken
    served.add("bad")
    final = served.bench.drain()["bad"]
    assert ends(final) == [("aei", "error")]
    assert "not numbers" in str(final.error)


def test_a_preempted_output_goes_on_where_its_grammar_was(make_bench: MakeBench) -> None:
    roomy, tight = Served(make_bench), Served(make_bench, num_blocks=8)
    for served in (roomy, tight):
        served.compiler.is_patient = False
        for index in range(4):
            served.add(str(index), "loop", "z" * (index + 1), max_tokens=30)
    expected, got = roomy.bench.drain(), tight.bench.drain()
    assert {name: ends(final) for name, final in got.items()} == {name: ends(final) for name, final in expected.items()}
    assert sum(final.metrics.num_preemptions for final in got.values()) > 0
    assert ends(got["0"]) == [("aeiou" * 6, "length")]


def test_callbacks_may_end_requests_whose_grammars_have_just_come(served: Served) -> None:
    """The failure of one is reported while the next ones are about to be queued."""
    served.engine.statistics.on_finish(
        lambda outputs: served.engine.abort_request(["second", "third"]) if outputs[0].request_id == "first" else None
    )
    served.add("first", "nonsense")
    served.add("second")
    served.add("third", "nonsense")
    served.compiler.finish("nonsense")
    served.compiler.finish("vowels")
    finals = served.bench.drain()
    assert {name: ends(final)[0][1] for name, final in finals.items()} == {
        "first": FAILED,
        "second": "abort",
        "third": "abort",
    }
    assert served.engine.failure is None
    assert not served.engine._table._by_sequence


def test_a_callback_may_add_requests_with_grammars(served: Served) -> None:
    served.compiler.is_patient = False
    names = iter(["again", "and again"])

    def add(outputs: Sequence[RequestOutput]) -> None:
        name = next(names, None)
        if name is not None:
            served.add(name, "nonsense")

    served.engine.statistics.on_finish(add)
    served.add("first", "nonsense")
    assert set(served.bench.drain()) == {"first", "again", "and again"}


def test_a_rank_of_a_group_steps_while_a_grammar_is_compiled(make_bench: MakeBench) -> None:
    group = LoneRank()
    served = Served(make_bench, communicator=group)
    served.add("r")
    for _ in range(5):
        served.bench.step()
        assert served.engine.has_unfinished()
    assert group.is_unfinished == [True] * 5, "the others go on, too"
    served.compiler.finish("vowels")
    assert ends(served.bench.drain()["r"]) == [("aeiou", "stop")]


def test_random_traffic_with_grammars_leaks_nothing_and_ends_every_request_once(make_bench: MakeBench) -> None:
    generator = np.random.default_rng(23)
    for case in range(2):
        served = Served(
            make_bench,
            num_blocks=int(generator.integers(9, 20)),
            draft_length=2 * case,
            chunked_prefill=bool(case % 2),
            max_num_batched_tokens=64,
            prefill_interval_all=3,
        )
        bench, aborted = served.bench, set()
        served.compiler.grammars["fragile"] = fragile(served.letters(VOWELS), 2)
        sources = ["vowels", "loop", "anything", "nonsense", "fragile", ""]
        chosen: dict[str, str] = {}
        for index in range(20):
            name, source = str(index), sources[int(generator.integers(len(sources)))]
            values = {"max_tokens": int(generator.integers(1, 12)), "n": int(generator.integers(1, 4))}
            grammar = GrammarSpec.regex(source) if source else None
            several = params(temperature=1.0, top_k=1, structured=grammar, **values)
            served.engine.add_request(name, [5] * int(generator.integers(1, 40)), several)
            chosen[name] = source
            for _ in range(int(generator.integers(0, 4))):
                if generator.random() < 0.5:
                    served.compiler.finish(sources[int(generator.integers(5))])
                bench.step()
            if generator.random() < 0.2:
                victim = str(int(generator.integers(index + 1)))
                aborted.update([victim] * served.engine.abort_request(victim))
        served.compiler.is_patient = False
        for source in sources:
            served.compiler.finish(source)
        finals = bench.drain()
        assert set(finals) == set(chosen)
        assert not list(served.engine._table)
        assert not served.engine._table._by_sequence
        for name, final in finals.items():
            whole = {"vowels": VOWELS, "fragile": "ae", "loop": VOWELS * 3, "nonsense": ""}.get(chosen[name], LETTERS)
            for text, reason in ends(final):
                assert whole.startswith(text)
                expected = {"vowels": {"stop", "length"}, "loop": {"length"}, "nonsense": {FAILED}}
                expected["fragile"] = {FAILED, "length"}
                usual = expected.get(chosen[name], {"length"})
                assert reason in (usual | {"abort"} if name in aborted else usual)
