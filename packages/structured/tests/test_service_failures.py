"""Processes that are killed or hang, vocabularies that cannot be made, and what is left of a service afterwards."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest
from service_testing.grammars import pathological, quick
from service_testing.services import both_workers_of, fleet_of, make_service, start, workers_of
from service_testing.system import children_of, family_of, is_alive, open_fds, wait_until

from thalweg.interfaces import ConfigError, RequestError
from thalweg.structured import CompileService, Vocabulary
from thalweg.structured.service import fleet
from thalweg.structured.service.shipping import origin

DEADLINE_S = 60


def zygote_of(service: CompileService) -> int:
    pid = fleet_of(service).zygote_pid
    assert pid is not None
    return pid


def kill_busy_worker(service: CompileService) -> None:
    wait_until(lambda: len(fleet_of(service).running) == 1)
    pid = fleet_of(service).running[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in workers_of(service))


def test_a_killed_worker_is_replaced_and_its_grammar_gets_one_more(service: CompileService) -> None:
    start(service)
    hopeless = service.compile(pathological("killed"))
    kill_busy_worker(service)
    assert service.compile(quick(5000)).result(DEADLINE_S)
    assert not hopeless.done()
    kill_busy_worker(service)
    error = hopeless.exception(DEADLINE_S)
    assert isinstance(error, RequestError)
    assert str(error) == "the process that compiled the grammar is gone: it was ended by signal SIGKILL"
    assert service.compile(quick(5001)).result(DEADLINE_S)


def test_a_zygote_that_is_killed_or_hangs_takes_its_workers_along_and_its_jobs_run_once_more(
    service: CompileService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(service)
    hopeless = service.compile(pathological("again"))
    wait_until(lambda: len(fleet_of(service).running) == 1)
    zygote, workers = zygote_of(service), both_workers_of(service)
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, [zygote, *workers])))
    assert service.compile(quick(5004)).result(DEADLINE_S)
    assert zygote not in children_of(os.getpid()), "it was reaped"
    assert "the compile process is gone" in caplog.text
    monkeypatch.setattr(fleet, "KILL_TIMEOUT_S", 0.2)
    wait_until(lambda: len(fleet_of(service).running) == 1)
    zygote, workers = zygote_of(service), both_workers_of(service)
    os.kill(zygote, signal.SIGSTOP)
    kill_busy_worker(service)
    assert str(hopeless.exception(DEADLINE_S)) == "the compile process is gone: it did not end a worker within 0.2 s"
    wait_until(lambda: not any(map(is_alive, [zygote, *workers])))


def fail_to_make_a_vocabulary() -> Vocabulary:
    raise ConfigError("the tokenizer has no decoder")


def test_a_vocabulary_that_cannot_be_made_fails_what_waits_and_is_tried_again() -> None:
    attempts = count()

    def fail() -> Vocabulary:
        next(attempts)
        return fail_to_make_a_vocabulary()

    with CompileService(fail) as service:
        for _ in range(2):
            error = service.compile(quick()).exception(DEADLINE_S)
            assert isinstance(error, RequestError)
            assert str(error) == "the compile service cannot be started: the tokenizer has no decoder"
    assert next(attempts) >= 2


def test_a_python_that_cannot_be_started_fails_what_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for executable in (str(tmp_path / "python"), "", "/bin/false"):
        monkeypatch.setattr(sys, "executable", executable)
        with make_service() as service:
            error = service.compile(quick()).exception(DEADLINE_S)
        assert "the compile service cannot be started" in str(error)


def test_a_worker_with_another_version_of_the_library_is_refused(
    service: CompileService, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(service)
    monkeypatch.setattr(
        "thalweg.structured.service.shipping.origin", lambda vocabulary: {**origin(vocabulary), "xgrammar": "9.9"}
    )
    error = service.compile(quick(5003)).exception(DEADLINE_S)
    assert isinstance(error, RequestError)
    assert "made with xgrammar" in str(error)
    assert "'9.9'" in str(error)


def test_nothing_is_left_of_a_service_that_several_threads_close_one_of_its_own_among_them() -> None:
    before = (threading.active_count(), set(family_of(os.getpid())), open_fds())
    service = make_service()
    start(service)
    pending = [service.compile(pathological(name), user=name) for name in "abcd"]
    joining = service.compile(pathological("a"))
    wait_until(lambda: len(fleet_of(service).running) == 2)
    family = set(family_of(os.getpid())) - before[1]
    assert len(family) >= 2
    pending[2].add_done_callback(lambda future: service.close())
    closing = threading.Thread(target=service.close)
    closing.start()
    service.close()
    closing.join()
    for future in [*pending, joining]:
        assert str(future.exception(10)).startswith("closed")
    wait_until(lambda: not any(map(is_alive, family)))
    wait_until(lambda: threading.active_count() == before[0])
    assert (set(family_of(os.getpid())), open_fds()) == before[1:]
    with pytest.raises(RequestError, match="closed"):
        service.compile(quick())


def test_a_callback_may_be_the_only_one_to_close_the_service() -> None:
    before = threading.active_count()
    service = CompileService(fail_to_make_a_vocabulary)
    service.compile(quick()).add_done_callback(lambda future: service.close())
    wait_until(lambda: threading.active_count() == before)


def test_a_service_that_is_dropped_while_it_starts_ends_by_itself() -> None:
    before = (threading.active_count(), children_of(os.getpid()), open_fds())
    service = make_service()
    future = service.compile(quick())
    del service
    gc.collect()
    assert str(future.exception(0)).startswith("closed")
    assert (threading.active_count(), children_of(os.getpid()), open_fds()) == before


SCRIPT_THAT_ENDS = """
from service_testing.grammars import quick
from service_testing.services import make_service

service = make_service()
service.compile(quick())
"""
SCRIPT_THAT_IS_KILLED = """
import os, signal, time
from service_testing.grammars import quick
from service_testing.services import make_service

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background ignores it
service = make_service()
print(service.compile(quick()).result(60).is_constrained, flush=True)
try:
    print(input(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print(service.compile(quick(1)).result(60).is_constrained, flush=True)
if os.fork() == 0:  # has every descriptor of its parent, and outlives it
    try:
        service.compile(quick())
    except Exception as error:
        print(error, flush=True)
    service.close()
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def run_script(text: str) -> subprocess.Popen[str]:
    """A user's script, without a guard for a main module, in a process group of its own."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


def test_a_script_ends_without_closing_and_leaves_no_process() -> None:
    with run_script(SCRIPT_THAT_ENDS) as script:
        assert script.wait(60) == 0
    wait_until(lambda: not group_is_alive(script.pid))


def group_is_alive(pid: int) -> bool:
    """Whether a process of the group that this one was the first of still runs."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupted_script_goes_on_and_a_killed_one_leaves_nothing_even_if_a_fork_of_it_lives_on() -> None:
    with run_script(SCRIPT_THAT_IS_KILLED) as script:
        assert script.stdin is not None
        assert script.stdout is not None
        assert script.stdout.readline() == "True\n"
        script.stdin.write("typed\n")
        script.stdin.flush()
        assert script.stdout.readline() == "typed\n", "its input is its own"
        family = family_of(script.pid)
        assert len(family) == 3
        os.killpg(script.pid, signal.SIGINT)
        assert script.stdout.readline() == "True\n"
        assert "belongs to the process that this one was forked from" in script.stdout.readline()
        fork = int(script.stdout.readline())
        assert all(map(is_alive, [*family, fork])), "closing it in a fork ends nothing"
        script.kill()
        wait_until(lambda: not any(map(is_alive, family)))
        os.kill(fork, signal.SIGKILL)


def test_neither_the_package_nor_the_service_loads_the_library() -> None:
    check = "import sys, thalweg.structured; from thalweg.structured import CompileService as Service; "
    check += "Service(None).close(); sys.exit(bool({'xgrammar', 'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
