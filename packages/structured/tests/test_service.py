"""The service with real processes: what it compiles, and what it refuses."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from service_testing.grammars import pathological, quick, tangle
from service_testing.services import both_workers_of, fleet_of, make_service, workers_of
from service_testing.system import wait_until
from service_testing.vocabularies import END, small_vocabulary, token_of

from thalweg.interfaces import ConfigError, GrammarSpec, Matcher, RequestError
from thalweg.structured import CompileService

DEADLINE_S = 60


def allowed(matcher: Matcher) -> set[int]:
    mask = np.zeros((1, 40), np.int32)
    matcher.fill_bitmask(mask, 0)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def test_a_future_becomes_a_matcher_of_the_grammar(service: CompileService) -> None:
    matcher = service.compile(GrammarSpec.regex("ab")).result(DEADLINE_S)
    assert allowed(matcher) == {token_of("a")}
    assert matcher.accept(token_of("a"))
    assert allowed(matcher) == {token_of("b")}
    assert matcher.accept(token_of("b"))
    assert allowed(matcher) == {END}


def test_every_request_gets_a_matcher_of_its_own_with_its_own_trigger(service: CompileService) -> None:
    plain, again = (service.compile(quick()).result(DEADLINE_S) for _ in range(2))
    triggered = service.compile(GrammarSpec.regex(quick().source, trigger_token_ids=[7, 8])).result(DEADLINE_S)
    assert plain.accept(token_of("a"))
    assert allowed(again) == {token_of("a")}
    assert [again.is_constrained, triggered.is_constrained] == [True, False]
    assert triggered.accept(7)
    assert triggered.accept(8)
    assert triggered.is_constrained


def test_a_kept_grammar_is_served_by_a_future_that_is_done(service: CompileService) -> None:
    service.compile(quick()).result(DEADLINE_S)
    before = service.counts
    assert service.compile(quick()).done()
    assert service.counts.num_cache_hits == before.num_cache_hits + 1
    assert service.counts.num_compiled == before.num_compiled


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec.json({"type": "object", "properties": {"ä": {"type": "string"}}}),
        GrammarSpec.json({"type": "array"}, strict=False, any_whitespace=False),
        GrammarSpec.json({"type": "array"}, max_whitespace=None),
        GrammarSpec.ebnf('root ::= "x" root | "y"'),
        GrammarSpec.choice(["yes", "no", 'a "quoted" one']),
        GrammarSpec.structural_tag({"type": "structural_tag", "format": {"type": "const_string", "value": "<go>"}}),
    ],
    ids=lambda spec: spec.kind,
)
def test_grammars_that_a_worker_sent_allow_what_those_made_here_allow(
    service: CompileService, strict_service: CompileService, spec: GrammarSpec
) -> None:
    made, sent = (one.compile(spec).result(DEADLINE_S) for one in (service, strict_service))
    rng = np.random.default_rng(5)
    for _ in range(40):
        choices = allowed(made)
        assert choices == allowed(sent)
        token_id = int(rng.choice(sorted(choices)))
        assert made.accept(token_id)
        assert sent.accept(token_id)
        if made.is_finished:
            return


def test_an_invalid_grammar_fails_its_future_and_says_why(service: CompileService) -> None:
    before = service.counts
    error = service.compile(GrammarSpec.ebnf('root ::= "a" missing')).exception(DEADLINE_S)
    assert isinstance(error, RequestError)
    assert "missing" in str(error)
    assert service.counts.num_failed == before.num_failed + 1
    assert service.counts.num_timeouts == before.num_timeouts
    assert service.counts.num_workers_replaced == before.num_workers_replaced, "a bad grammar costs no process"


def test_what_is_wrong_with_the_specification_itself_is_raised_at_once(service: CompileService) -> None:
    submitted = service.counts.num_submitted
    with pytest.raises(RequestError, match="uniqueItems"):
        service.compile(GrammarSpec.json({"type": "array", "uniqueItems": True}))
    with pytest.raises(RequestError, match=r"the regex source has .* max_source_bytes is 262144"):
        service.compile(GrammarSpec.regex("ä" * 131_073))
    assert service.counts.num_submitted == submitted


@pytest.mark.parametrize("service_name", ["service", "strict_service"])
def test_a_trigger_that_the_vocabulary_lacks_fails_only_those_who_asked_for_it(
    request: pytest.FixtureRequest, service_name: str
) -> None:
    service: CompileService = request.getfixturevalue(service_name)
    spec = tangle(6, "trigger")
    wrong = replace(spec, trigger_token_ids=(10**9,))
    futures = [service.compile(one) for one in (wrong, spec, wrong, spec)]
    for future in futures[::2]:
        with pytest.raises(RequestError, match="trigger or bound token 1000000000 is not one of the 1280 tokens"):
            future.result(DEADLINE_S)
    assert all(future.result(DEADLINE_S).is_constrained for future in futures[1::2])


@pytest.mark.parametrize("user", [[], None, 5])
def test_a_user_that_is_no_text_is_refused_and_nobody_else_is_harmed(service: CompileService, user: Any) -> None:
    spec = tangle(16, "user")
    future = service.compile(spec, user="ada")
    wait_until(lambda: bool(fleet_of(service).running) or future.done())
    with pytest.raises(ConfigError, match=r"user is .*; it must be a string"):
        service.compile(spec, user=user)
    assert future.result(DEADLINE_S).is_constrained


@pytest.mark.parametrize("spec", [None, "json", {"regex": "a"}])
def test_what_is_no_specification_is_refused(service: CompileService, spec: Any) -> None:
    with pytest.raises(ConfigError, match=r"spec is .*; it must be a GrammarSpec"):
        service.compile(spec)


def test_warnings_are_logged_once_for_each_grammar(service: CompileService, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "thalweg.structured"):
        for trigger in ([], [1], [2]):
            spec = GrammarSpec.json({"type": "string", "format": "no such format"}, trigger_token_ids=trigger)
            service.cancel([service.compile(spec)])
    assert caplog.text.count("no such format") == 1


def test_many_threads_share_one_service(service: CompileService) -> None:
    results: list[Future[Matcher]] = []

    def submit(user: str) -> None:
        results.extend(service.compile(quick(1000 + number % 20), user=user) for number in range(50))

    threads = [threading.Thread(target=submit, args=(f"user {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done, pending = wait(results, DEADLINE_S)
    assert (len(done), len(pending)) == (400, 0)
    assert len({id(future.result()) for future in results}) == 400


def test_callbacks_run_on_a_thread_of_the_service_and_a_failing_one_harms_nothing(service: CompileService) -> None:
    names: list[str] = []

    def note(future: Future[Matcher]) -> None:
        names.append(threading.current_thread().name)
        raise SystemExit

    held = [service.compile(pathological(f"held{number}")) for number in range(2)]
    future = service.compile(quick(2000))
    future.add_done_callback(note)
    service.cancel(held)
    assert future.result(DEADLINE_S)
    assert service.compile(quick(2001)).result(DEADLINE_S)
    assert names == ["thalweg-structured-deliver-0"]


def test_cancelling_what_runs_ends_its_worker_and_cancelling_what_waits_does_not(service: CompileService) -> None:
    first, second, waiting = (service.compile(pathological(name)) for name in "abc")
    wait_until(lambda: len(fleet_of(service).running) == 2)
    before, workers = service.counts, both_workers_of(service)
    service.cancel([waiting, first])
    assert first.cancelled()
    assert waiting.cancelled()
    with pytest.raises(CancelledError):
        first.result(0)
    assert wait([first, waiting], 1).done == {first, waiting}
    wait_until(lambda: len(workers & both_workers_of(service)) == 1)
    assert len(fleet_of(service).running) == 1, "the other one is still at its work"
    assert not second.done()
    assert second.cancel()
    assert service.counts.num_cancelled == before.num_cancelled + 3
    wait_until(lambda: not workers & workers_of(service))


def test_cancelling_one_of_two_equal_requests_leaves_the_other(service: CompileService) -> None:
    spec = pathological("shared")
    first, second = service.compile(spec, user="a"), service.compile(spec, user="b")
    wait_until(lambda: fleet_of(service).running)
    workers = both_workers_of(service)
    service.cancel([first])
    time.sleep(0.05)
    assert workers_of(service) == workers
    assert not second.done()
    service.cancel([second, second])
    wait_until(lambda: not fleet_of(service).running)
    wait_until(lambda: workers_of(service) != workers)


def test_no_user_has_all_workers_while_another_one_waits(service: CompileService) -> None:
    greedy = [service.compile(pathological(f"greedy{number}"), user="greedy") for number in range(6)]
    wait_until(lambda: len(fleet_of(service).running) == 2)
    began = time.monotonic()
    for number in range(3):
        assert service.compile(quick(3000 + number), user="modest").result(DEADLINE_S)
    assert time.monotonic() - began < 10, "each waits until a job has shown that it is not quick, not for its end"
    assert not any(future.done() for future in greedy)


def test_closing_before_anything_was_compiled_is_possible_and_final() -> None:
    service = make_service()
    service.close()
    service.close()
    with pytest.raises(RequestError, match="closed"):
        service.compile(quick())


def test_limits_are_checked_by_the_constructor() -> None:
    with pytest.raises(ConfigError, match="num_workers is 0"):
        CompileService(small_vocabulary(), num_workers=0)
