"""Requests that wait for their grammars: who is told what, and who is forgotten."""

import threading
import time
from concurrent.futures import Future

import pytest
from engine_testing.bench import BLOCK, EOS, VOCAB
from engine_testing.compiler import FakeCompiler
from engine_testing.matchers import FunctionMatcher

from thalweg.engine.admission import Admission, Limits
from thalweg.engine.grammars import Grammars
from thalweg.engine.requests import RequestState
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import GrammarCounts, GrammarSpec, Matcher, RequestError, SamplingParams


@pytest.fixture
def compiler() -> FakeCompiler:
    compiler = FakeCompiler(EOS)
    compiler.grammars = {"a": lambda tokens: {5}, "b": lambda tokens: {6}}
    return compiler


@pytest.fixture
def grammars(compiler: FakeCompiler) -> Grammars:
    return Grammars(lambda: compiler)


@pytest.fixture
def admission(tokenizer: Tokenizer) -> Admission:
    return Admission(tokenizer, Limits(VOCAB, 64, BLOCK, 10), seed=0)


def request(admission: Admission, source: str, n: int = 1) -> RequestState:
    return admission.admit(source, "x", SamplingParams(n=n, structured=GrammarSpec.regex(source)))


def test_requests_leave_in_the_order_in_which_their_grammars_come(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission
) -> None:
    first, second, third = (request(admission, source) for source in "abc")
    for each in (first, second, third):
        grammars.submit(each, "someone")
    assert (len(grammars), grammars.num_compiling, grammars.pump()) == (3, 3, [])
    compiler.finish("b")
    compiler.finish("a")
    assert (len(grammars), grammars.num_compiling) == (3, 1)
    assert grammars.pump() == [(second, None), (first, None)]
    compiler.finish("c")
    assert grammars.pump() == [(third, "no rule 'c'")]
    assert (len(grammars), grammars.pump()) == (0, [])
    assert [user for _, user, _ in compiler.asked] == ["someone"] * 3


def test_every_output_has_a_matcher_of_its_own(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission
) -> None:
    several = request(admission, "a", n=3)
    grammars.submit(several, "")
    assert [output.constraint for output in several.outputs] == [None] * 3
    compiler.finish("a")
    grammars.pump()
    matchers = [output.constraint.matcher for output in several.outputs if output.constraint is not None]
    assert len(set(map(id, matchers))) == 3
    assert [matcher.accept(5) for matcher in matchers] == [True] * 3


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError("enough")])
def test_a_matcher_that_cannot_be_had_fails_its_request_only(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission, error: Exception
) -> None:
    class Worn(FunctionMatcher):
        def fresh(self) -> FunctionMatcher:
            raise error

    requests = [request(admission, source) for source in "aba"]
    for each in requests:
        grammars.submit(each, "")
    futures = compiler.waiting()
    futures[0].set_result(Worn(lambda tokens: {5}))
    futures[2].set_exception(error)
    compiler.finish("b")
    message = f"its grammar cannot be used: {type(error).__name__}: {error}"
    assert sorted(grammars.pump(), key=lambda arrival: arrival.request.arrival_s) == [
        (requests[0], message),
        (requests[1], None),
        (requests[2], message),
    ]


def test_a_future_that_others_cancel_ends_its_request(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission
) -> None:
    lost = request(admission, "a")
    grammars.submit(lost, "")
    compiler.waiting()[0].cancel()
    assert grammars.pump() == [(lost, "compiling its grammar was cancelled")]


def test_forgotten_requests_cancel_their_grammars_and_never_come_back(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission
) -> None:
    kept, gone, done = request(admission, "a"), request(admission, "b"), request(admission, "b")
    for each in (kept, gone, done):
        grammars.submit(each, "")
    futures = [future for _, _, future in compiler.asked]
    futures[2].set_result(FunctionMatcher(lambda tokens: None))
    grammars.forget([gone, done, request(admission, "a")])
    assert [future.cancelled() for future in futures] == [False, True, False]
    assert (len(grammars), grammars.num_compiling, grammars.pump()) == (1, 1, [])
    compiler.finish("a")
    assert grammars.pump() == [(kept, None)]


def test_a_refusal_of_the_compiler_leaves_nothing_behind(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission
) -> None:
    def refuse(spec: GrammarSpec) -> None:
        raise RequestError("$.minimum is above $.maximum")

    compiler.on_compile = refuse
    with pytest.raises(RequestError, match=r"\$.minimum is above"):
        grammars.submit(request(admission, "a"), "")
    assert (len(grammars), grammars.num_compiling) == (0, 0)


def test_the_compiler_is_made_by_the_first_request_and_closed_once(admission: Admission) -> None:
    made: list[FakeCompiler] = []

    def make() -> FakeCompiler:
        made.append(FakeCompiler(EOS))
        return made[-1]

    grammars = Grammars(make)
    assert grammars.counts == GrammarCounts()
    assert not made
    grammars.submit(request(admission, "a"), "")
    grammars.submit(request(admission, "a"), "")
    assert len(made) == 1
    made[0].counts = GrammarCounts(num_submitted=2)
    assert grammars.counts.num_submitted == 2
    grammars.close()
    assert made[0].is_closed
    assert (len(grammars), grammars.num_compiling, grammars.pump()) == (0, 0, [])
    assert grammars.counts.num_submitted == 2, "the last totals stay readable"
    grammars.close()
    Grammars(make).close()
    assert len(made) == 1


def test_without_a_compiler_the_message_names_what_to_install(admission: Admission) -> None:
    with pytest.raises(RequestError, match=r"pip install 'thalweg-engine\[structured\]'"):
        Grammars().submit(request(admission, "a"), "")


def test_waiting_ends_when_a_grammar_comes_from_another_thread(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission
) -> None:
    one = request(admission, "a")
    grammars.submit(one, "")
    grammars.wait(0.0)
    assert grammars.pump() == []
    thread = threading.Timer(0.02, compiler.finish, "a")
    thread.start()
    started = time.perf_counter()
    grammars.wait(30.0)
    grammars.wait(30.0)  # it is known already that one has come
    assert time.perf_counter() - started < 20
    assert grammars.pump() == [(one, None)]
    thread.join()


def test_grammars_that_come_while_others_are_taken_are_neither_lost_nor_given_twice(
    grammars: Grammars, compiler: FakeCompiler, admission: Admission
) -> None:
    requests = [request(admission, "a") for _ in range(200)]
    for each in requests:
        grammars.submit(each, "")
    futures: list[Future[Matcher]] = compiler.waiting()

    def finish(part: list[Future[Matcher]]) -> None:
        for future in part:
            future.set_result(FunctionMatcher(lambda tokens: None))

    threads = [threading.Thread(target=finish, args=(futures[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    taken: list[RequestState] = []
    while len(grammars):
        grammars.wait(1.0)
        taken += [arrival.request for arrival in grammars.pump()]
    for thread in threads:
        thread.join()
    assert len(taken) == 200
    assert set(taken) == set(requests)
