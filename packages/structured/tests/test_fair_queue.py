from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.structured.service.fair_queue import FairQueue


def filled(*entries: tuple[str, str]) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue()
    for user, job in entries:
        queue.push(job, user)
    return queue


def drained(queue: FairQueue[str]) -> list[str]:
    return list(iter(queue.pop, None))


def test_users_take_turns_whatever_the_number_of_their_jobs() -> None:
    queue = filled(*[("a", f"a{i}") for i in range(4)], ("b", "b0"), ("b", "b1"), ("c", "c0"))
    assert drained(queue) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_a_user_who_comes_later_waits_for_one_job_of_each_other_at_most() -> None:
    queue = filled(("a", "a0"), ("a", "a1"), ("b", "b0"), ("b", "b1"))
    assert queue.pop() == "a0"
    queue.push("c0", "c")
    assert drained(queue) == ["b0", "a1", "c0", "b1"]


def test_a_job_of_two_users_comes_in_the_first_turn_of_either_and_once() -> None:
    queue = filled(("a", "a0"), ("a", "both"), ("b", "both"), ("b", "b0"))
    assert queue.users_of("both") == {"a", "b"}
    assert drained(queue) == ["a0", "both", "b0"]
    assert len(queue) == 0


def test_users_without_a_worker_come_first() -> None:
    queue = filled(("a", "a0"), ("b", "b0"), ("c", "c0"))
    assert queue.pop({"a", "b"}) == "c0"
    assert queue.pop({"a", "b"}) == "a0", "without anybody else it is their turn"


def test_a_job_that_was_begun_goes_before_the_others_of_its_user() -> None:
    queue = filled(("a", "a0"), ("a", "a1"))
    queue.push("again", "a", first=True)
    assert drained(queue) == ["again", "a0", "a1"]


def test_a_job_stays_for_the_users_who_did_not_leave() -> None:
    queue = filled(("a", "both"), ("b", "both"))
    queue.leave("both", "a")
    assert queue.num_waiting("a") == 0
    assert queue.num_waiting("b") == 1
    queue.leave("both", "b")
    assert queue.pop() is None
    queue.leave("both", "b")


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)) | st.none() | st.integers(0, 30), max_size=60))
def test_any_history_equals_a_plain_list_of_turns(history: list[tuple[str, int] | int | None]) -> None:
    """A pair is pushed, a number left by everybody, None takes the next one."""
    queue: FairQueue[int] = FairQueue()
    turns: deque[tuple[str, list[int]]] = deque()
    for act in history:
        if isinstance(act, tuple):
            user, job = act
            queue.push(job, user)
            mine = next((jobs for name, jobs in turns if name == user), None)
            if mine is None:
                turns.append((user, [job]))
            elif job not in mine:
                mine.append(job)
            continue
        gone = act
        if act is None:
            gone = turns[0][1][0] if turns else None
            assert queue.pop() == gone
            turns.rotate(-1)
        else:
            for name in "abc":
                queue.leave(act, name)
        turns = deque((name, [job for job in jobs if job != gone]) for name, jobs in turns)
        turns = deque((name, jobs) for name, jobs in turns if jobs)
    assert len(queue) == len({job for _, jobs in turns for job in jobs})
    assert all(queue.num_waiting(name) == len(jobs) for name, jobs in turns)
