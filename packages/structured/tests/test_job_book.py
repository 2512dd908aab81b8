from concurrent.futures import Future

import pytest
from service_testing.grammars import quick

from thalweg.interfaces import GrammarSpec, Matcher, RequestError
from thalweg.structured.service.job_book import JobBook
from thalweg.structured.service.jobs import Job, Outcome
from thalweg.structured.service.limits import ServiceLimits


class Compiled:
    """What the book asks of a compiled grammar."""

    def __init__(self, memory_size_bytes: int = 100) -> None:
        self.memory_size_bytes = memory_size_bytes


def make_book(**limits: int) -> JobBook:
    book = JobBook(ServiceLimits(timeout_s=20, **limits))
    book.set_ready(0)
    return book


def futures(outcomes: list[Outcome]) -> list[Future[Matcher]]:
    return [outcome.waiter.future for outcome in outcomes]


def started(book: JobBook, now: float = 0) -> Job:
    job = book.start_next(now)
    assert job is not None
    return job


def test_equal_grammars_in_flight_are_one_job_whatever_their_triggers() -> None:
    book = make_book()
    plain = book.submit(quick(), "a", 0)
    triggered = book.submit(GrammarSpec.regex(quick().source, trigger_token_ids=[1, 2], bound_token_id=3), "b", 1)
    job = started(book)
    late = book.submit(quick(), "c", 2)
    assert book.start_next(2) is None
    outcomes, gone = book.finish(job, Compiled(), 5)
    assert (futures(outcomes), gone) == ([plain, triggered, late], [])
    assert [outcome.waiter.spec.trigger_token_ids for outcome in outcomes] == [(), (1, 2), ()]
    assert (book.counts.num_compiled, book.counts.compile_s) == (3, 5 + 4 + 3)


def test_what_was_compiled_is_found_again_and_something_else_is_not() -> None:
    book = make_book()
    book.submit(quick(), "a", 0)
    compiled = Compiled()
    book.finish(started(book), compiled, 1)
    assert book.find(GrammarSpec.regex(quick().source, trigger_token_ids=[1])) is compiled
    assert book.find(quick(1)) is None
    assert book.find(GrammarSpec.ebnf(quick().source)) is None
    assert (book.counts.num_submitted, book.counts.num_cache_hits) == (2, 1)
    assert book.counts.cache_bytes == 100 + len(quick().source)


def test_options_make_another_grammar() -> None:
    book = make_book()
    specs = [
        GrammarSpec.json("{}"),
        GrammarSpec.json("{}", strict=False),
        GrammarSpec.json("{}", any_whitespace=False),
        GrammarSpec.json("{}", max_whitespace=3),
    ]
    for spec in specs:
        book.submit(spec, "a", 0)
    assert [started(book).spec for _ in specs] == specs


def test_waiters_expire_exactly_each_at_its_own_deadline() -> None:
    book = make_book()
    first, second = book.submit(quick(), "a", 0), book.submit(quick(), "b", 0.5)
    assert book.next_deadline() == 20
    assert book.expire(19.999) == []
    outcomes = book.expire(20)
    assert futures(outcomes) == [first]
    assert outcomes[0].error == ("timeout: no grammar within timeout_s 20 of its submission; it waited for a worker")
    job = started(book, 20.1)
    assert not book.is_abandoned(job)
    outcomes = book.expire(20.5)
    assert futures(outcomes) == [second]
    assert outcomes[0].error.endswith("a worker compiled it for 0.4 s")
    assert book.is_abandoned(job)
    assert (book.next_deadline(), book.counts.num_failed, book.counts.num_timeouts) == (None, 2, 2)


def test_the_start_of_the_service_is_on_nobodys_time() -> None:
    book = make_book()
    before = book.submit(quick(0), "a", 0)
    book.set_down()
    meanwhile = [book.submit(quick(number), "a", number) for number in (1, 2)]
    assert book.next_deadline() == 20
    assert futures(book.expire(1000)) == [before]
    assert book.next_deadline() is None
    book.set_ready(50)
    after = book.submit(quick(3), "a", 55)
    assert book.next_deadline() == 70
    assert book.expire(69.9) == []
    outcomes = book.expire(70, "no worker can be started: no memory")
    assert futures(outcomes) == meanwhile
    assert outcomes[0].error == (
        "timeout: no grammar within timeout_s 20 of the start of the compile service; it waited for a worker; "
        "no worker can be started: no memory"
    )
    assert futures(book.expire(75)) == [after]


def test_an_expired_job_that_waited_is_never_started() -> None:
    book = make_book()
    book.submit(quick(), "a", 0)
    book.expire(20)
    assert not book.has_queued
    assert book.start_next(20) is None


def test_nobody_joins_an_abandoned_job_and_its_late_result_is_kept() -> None:
    book = make_book()
    book.leave(book.submit(quick(), "a", 0))
    book.submit(quick(), "a", 0)
    abandoned = started(book)
    book.set_finishing(abandoned)
    book.expire(20)
    again = book.submit(quick(), "a", 21)
    compiled = Compiled()
    assert book.finish(abandoned, compiled, 22) == ([], [])
    assert book.find(quick()) is compiled
    outcomes, gone = book.finish(started(book), Compiled(), 23)
    assert (futures(outcomes), gone) == ([again], [compiled])


def test_a_cancelled_waiter_is_counted_once_and_its_job_goes_on_for_others() -> None:
    book = make_book()
    mine, other = book.submit(quick(), "a", 0), book.submit(quick(), "b", 0)
    assert book.leave(mine)
    assert not book.leave(mine)
    outcomes, _ = book.finish(started(book), Compiled(), 1)
    assert futures(outcomes) == [other]
    assert not book.leave(other), "it was decided before"
    assert (book.counts.num_cancelled, book.counts.num_compiled) == (1, 1)


def test_too_many_grammars_of_one_user_are_refused_and_equal_ones_count_once() -> None:
    book = make_book(max_pending_per_user=2)
    book.submit(quick(0), "a", 0)
    book.submit(quick(1), "a", 0)
    with pytest.raises(RequestError, match=r"2 grammars of user 'a' are waiting .* max_pending_per_user"):
        book.submit(quick(2), "a", 0)
    book.submit(quick(0), "a", 0)
    book.submit(quick(2), "b", 0)
    with pytest.raises(RequestError, match="2 grammars of user 'a'"):
        book.submit(quick(2), "a", 0)
    started(book)
    book.submit(quick(2), "a", 0)
    book.submit(quick(0), "a", 0)
    assert book.counts.num_submitted == 6


def test_a_job_that_starts_again_comes_first_for_everybody_who_waits_for_it() -> None:
    book = make_book()
    for number in range(3):
        book.submit(quick(number), "a", 0)
    begun = started(book)
    book.submit(quick(0), "b", 0)
    book.requeue(begun)
    assert [started(book).spec for _ in range(3)] == [quick(0), quick(1), quick(2)]
    assert begun.num_starts == 2


def test_a_job_that_nobody_waits_for_does_not_start_again() -> None:
    book = make_book()
    future = book.submit(quick(), "a", 0)
    job = started(book)
    book.leave(future)
    book.requeue(job)
    assert not book.has_queued


def test_a_failure_reaches_everybody_who_waits_and_is_not_kept() -> None:
    book = make_book()
    both = [book.submit(quick(), user, 0) for user in "ab"]
    outcomes = book.fail(started(book), "invalid")
    assert futures(outcomes) == both
    assert {outcome.error for outcome in outcomes} == {"invalid"}
    assert not book.is_in_flight(quick())
    assert book.find(quick()) is None
    assert (book.counts.num_failed, book.counts.num_timeouts) == (2, 0)


def test_a_start_that_fails_fails_who_waits_for_it_or_for_a_worker() -> None:
    book = make_book()
    book.submit(quick(0), "a", 0)
    running = started(book)
    waiting = [book.submit(quick(1), "a", 0), book.submit(quick(1), "b", 0)]
    book.set_down()
    late = book.submit(quick(0), "b", 0)
    assert futures(book.fail_start("no process")) == [*waiting, late]
    assert not book.is_abandoned(running)


def test_the_cache_keeps_within_its_limit_and_serves_what_is_too_large() -> None:
    book = make_book(cache_bytes=1000)
    for number, size in enumerate([400, 400, 400, 5000]):
        book.submit(quick(number), "a", 0)
        outcomes, gone = book.finish(started(book), Compiled(size), 1)
        assert len(outcomes) == 1
        assert len(gone) == (number == 2)
        assert book.counts.cache_bytes <= 1000
    assert [book.find(quick(number)) is not None for number in range(4)] == [False, True, True, False]


def test_after_the_end_everything_is_decided_and_nothing_is_taken_or_kept() -> None:
    book = make_book()
    pending = [book.submit(quick(number), "a", 0) for number in range(3)]
    job = started(book)
    outcomes = book.close()
    assert futures(outcomes) == pending
    assert all(outcome.error.startswith("closed") for outcome in outcomes)
    assert book.close() == []
    assert book.finish(job, Compiled(), 1) == ([], [])
    assert book.counts.cache_bytes == 0
    for call in (lambda: book.submit(quick(9), "a", 0), lambda: book.find(quick())):
        with pytest.raises(RequestError, match="closed"):
            call()


def test_every_request_is_in_exactly_one_total() -> None:
    book = make_book()
    book.submit(quick(0), "a", 0)
    book.finish(started(book), Compiled(), 1)
    book.find(quick(0))
    book.leave(book.submit(quick(1), "a", 0))
    book.submit(quick(2), "a", 0)
    book.fail(started(book), "no")
    book.submit(quick(3), "a", 0)
    book.expire(20)
    counts = book.counts
    assert counts.num_submitted == 5
    assert counts.num_compiled + counts.num_cache_hits + counts.num_failed + counts.num_cancelled == 5
