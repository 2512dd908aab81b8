"""Requests with grammars in a whole engine: they wait for them, and are told what is wrong with them."""

import threading

import pytest
from engine_testing.bench import EOS, VOCAB, Bench, MakeBench, params
from engine_testing.served import FAILED, Served, ends, structured

from thalweg.engine import engine as engine_module
from thalweg.engine.engine import EngineFailedError
from thalweg.interfaces import GrammarSpec, RequestError


def test_a_request_waits_for_its_grammar_while_others_run(served: Served) -> None:
    bench = served.bench
    served.add("r", user="me")
    bench.engine.add_request("other", "z", params())
    while "other" not in bench.finals:
        bench.step()
    assert (bench.text("other"), served.engine.num_compiling) == ("abcdefgh", 1)
    assert [output.request_id for output in bench.history if output.request_id == "r"] == []
    assert [user for _, user, _ in served.compiler.asked] == ["me"]
    assert bench.engine.has_unfinished()
    served.compiler.finish("vowels")
    assert ends(bench.drain()["r"]) == [("aeiou", "stop")]
    assert bench.finals["r"].outputs[0].token_ids[-1] == EOS


@pytest.mark.parametrize("draft_length", [0, 3])
def test_drafts_and_neighbours_change_nothing_about_a_constrained_output(
    make_bench: MakeBench, draft_length: int
) -> None:
    served = Served(make_bench, draft_length=draft_length)
    served.compiler.is_patient = False
    served.add("vowels")
    served.add("free", "anything")
    served.engine.add_request("plain", "z", params())
    served.add("loop", "loop", "e", max_tokens=5)
    finals = served.bench.drain()
    assert ends(finals["vowels"]) == [("aeiou", "stop")]
    assert ends(finals["free"]) == ends(finals["plain"]) == [("abcdefgh", "length")]
    assert ends(finals["loop"]) == [("iouae", "length")]


def test_a_grammar_that_cannot_be_compiled_ends_its_request_with_the_reason(served: Served) -> None:
    bench = served.bench
    served.add("bad", "nonsense", n=2, temperature=1.0)
    bench.engine.add_request("good", "z", params())
    bench.step()
    served.compiler.finish("nonsense")
    finals = bench.drain()
    assert ends(finals["bad"]) == [("", FAILED)] * 2
    assert finals["bad"].error == "no rule 'nonsense'"
    assert finals["bad"].metrics.total_time_s is not None
    assert ends(finals["good"]) == [("abcdefgh", "length")]


def test_a_refused_grammar_raises_at_once_and_its_id_is_free(served: Served) -> None:
    def refuse(spec: GrammarSpec) -> None:
        raise RequestError("$.enum is empty")

    served.compiler.on_compile = refuse
    with pytest.raises(RequestError, match=r"\$.enum is empty"):
        served.add("r")
    assert not served.engine.has_unfinished()
    served.engine.add_request("r", "z", params(max_tokens=1))
    assert served.bench.drain()["r"].outputs[0].text == "a"


def test_an_engine_without_a_compiler_refuses_grammars(bench: Bench) -> None:
    with pytest.raises(RequestError, match="pip install 'thalweg-engine"):
        bench.engine.add_request("r", "z", structured())
    assert not bench.engine.has_unfinished()


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (
            GrammarSpec.regex("a", trigger_token_ids=(5, VOCAB)),
            f"trigger_token_ids of the grammar has {VOCAB}; it must",
        ),
        (
            GrammarSpec.regex("a", trigger_token_ids=(5,), bound_token_id=2**40),
            f"bound_token_id of the grammar has {2**40}",
        ),
    ],
)
def test_a_trigger_outside_the_vocabulary_is_refused(served: Served, grammar: GrammarSpec, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        served.engine.add_request("r", "z", params(structured=grammar))
    assert not served.compiler.asked


def test_an_abort_while_the_grammar_is_compiled_cancels_it(served: Served) -> None:
    bench = served.bench
    for name in ("first", "second", "done"):
        served.add(name)
    futures = [future for _, _, future in served.compiler.asked]
    assert bench.engine.abort_request(["first", "nobody"]) == 1
    assert [future.cancelled() for future in futures] == [True, False, False]
    assert [output.request_id for output in bench.flush()] == ["first"]
    served.compiler.finish("vowels")
    assert bench.engine.abort_request("done") == 1, "its grammar is there, and no step has noticed"
    finals = bench.drain()
    assert {name: ends(final) for name, final in finals.items()} == {
        "first": [("", "abort")],
        "second": [("aeiou", "stop")],
        "done": [("", "abort")],
    }
    served.add("first", "loop", max_tokens=1)
    served.compiler.finish("loop")
    bench.finals.clear()
    assert ends(bench.drain()["first"]) == [("a", "length")]


def test_a_flush_returns_failures_of_grammars(served: Served) -> None:
    served.add("r", "nonsense")
    served.compiler.finish("nonsense")
    assert [ends(output) for output in served.bench.flush()] == [[("", FAILED)]]
    assert not served.engine.has_unfinished()


def test_a_step_with_nothing_to_do_waits_for_a_grammar(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_IDLE_WAIT_S", 30.0)
    served.add("r")
    thread = threading.Timer(0.05, served.compiler.finish, ["vowels"])
    thread.start()
    assert [output.outputs[0].text for output in served.bench.step()] in (["a"], [])
    assert served.engine.num_compiling == 0
    thread.join()
    assert ends(served.bench.drain()["r"]) == [("aeiou", "stop")]


def test_a_step_with_something_to_do_never_waits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(timeout_s: float) -> None:
        raise AssertionError("the engine waits while it has work")

    monkeypatch.setattr(served.engine._grammars, "wait", never)
    served.add("r")
    served.engine.add_request("other", "z", params(max_tokens=5))
    while "other" not in served.bench.finals:
        served.bench.step()
    served.engine.abort_request("r")
    served.bench.step()
    served.bench.drain()


def test_an_interrupt_of_the_wait_leaves_the_engine_whole(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(timeout_s: float) -> None:
        raise KeyboardInterrupt

    served.add("r")
    with monkeypatch.context() as patch:
        patch.setattr(served.engine._grammars, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            served.engine.step()
    assert served.engine.failure is None
    served.compiler.finish("vowels")
    assert ends(served.bench.drain()["r"]) == [("aeiou", "stop")]


def test_a_failed_step_ends_requests_whose_grammars_are_not_there(served: Served) -> None:
    def fail(number: int) -> None:
        raise RuntimeError("device lost")

    served.add("r")
    served.engine.add_request("other", "z", params())
    served.bench.model.on_forward = fail
    while served.engine.has_unfinished():
        served.bench.step()
    assert ends(served.bench.finals["r"]) == [("", "error")]
    assert "device lost" in str(served.bench.finals["r"].error)
    assert [future.cancelled() for _, _, future in served.compiler.asked] == [True]
    with pytest.raises(EngineFailedError):
        served.add("late")


def test_closing_the_engine_closes_the_compiler(served: Served) -> None:
    served.add("r")
    served.engine.close()
    assert served.compiler.is_closed
    assert not served.engine.has_unfinished()
    served.engine.close()
