import threading

import pytest

from thalweg.structured.service.threads import CallThreads


def test_calls_are_made_in_order_and_all_before_the_end() -> None:
    made: list[int] = []
    threads = CallThreads("test", 1)
    for number in range(100):
        threads.call(lambda number=number: made.append(number))
    threads.close()
    assert made == list(range(100))


@pytest.mark.parametrize("error", [ValueError("of a call"), SystemExit(1), KeyboardInterrupt()])
def test_a_call_that_raises_is_logged_and_the_next_is_made(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    made: list[int] = []
    threads = CallThreads("test", 1)
    threads.call(fail)
    threads.call(lambda: made.append(1))
    threads.close()
    assert made == [1]
    assert "a call of the compile service failed" in caplog.text


def test_a_thread_may_end_all_of_them_and_closing_twice_does_nothing() -> None:
    threads = CallThreads("test", 2)
    ended = threading.Event()
    threads.call(lambda: (threads.close(), ended.set()))
    assert ended.wait(10)
    threads.close()


def test_the_stack_of_other_threads_is_as_before() -> None:
    before = threading.stack_size()
    CallThreads("test", 1).close()
    assert threading.stack_size() == before
