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


def test_a_killed_zygote_takes_its_workers_along_and_its_jobs_run_once_more(
    service: CompileService, caplog: pytest.LogCaptureFixture
) -> None:
    start(service)
    hopeless = service.compile(pathological("again"))
    wait_until(lambda: len(fleet_of(service).running) == 1)
    zygote, workers = zygote_of(service), both_workers_of(service)
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, [zygote, *workers])))
    assert service.compile(quick(5004)).result(DEADLINE_S)
    assert zygote_of(service) != zygote
    assert zygote not in children_of(os.getpid()), "it was reaped"
    assert "the compile process is gone" in caplog.text
    wait_until(lambda: len(fleet_of(service).running) == 1)
    os.kill(zygote_of(service), signal.SIGKILL)
    error = hopeless.exception(DEADLINE_S)
    assert "the compile process is gone: it was ended by signal SIGKILL" in str(error)


def test_a_zygote_that_hangs_is_replaced(service: CompileService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "KILL_TIMEOUT_S", 0.2)
    start(service)
    future = service.compile(pathological("hangs"))
    wait_until(lambda: len(fleet_of(service).running) == 1)
    zygote = zygote_of(service)
    os.kill(zygote, signal.SIGSTOP)
    service.cancel([future])
    wait_until(lambda: not is_alive(zygote))
    assert service.compile(quick(5002)).result(DEADLINE_S)


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


SCRIPT = """
import os, time
from service_testing.grammars import pathological, quick
from service_testing.services import fleet_of, make_service

service = make_service()
print(service.compile(quick()).result(60).is_constrained, flush=True)
try:
    print(input(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print(service.compile(quick(1)).result(60).is_constrained, flush=True)
service.compile(pathological())
while not fleet_of(service).running:
    time.sleep(0.01)
"""
FORK_AND_WAIT = """
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


def lines_until_interrupted(script: subprocess.Popen[str]) -> tuple[list[str], list[int]]:
    """What the script prints up to the key press that interrupts it and after it, and the processes of the service."""
    assert script.stdin is not None
    assert script.stdout is not None
    lines = [script.stdout.readline()]
    script.stdin.write("typed\n")
    script.stdin.flush()
    lines.append(script.stdout.readline())
    family = family_of(script.pid)
    os.killpg(script.pid, signal.SIGINT)
    lines.append(script.stdout.readline())
    return lines, family


def test_a_script_can_be_interrupted_go_on_and_end_without_closing() -> None:
    with run_script(SCRIPT) as script:
        lines, family = lines_until_interrupted(script)
        assert lines == ["True\n", "typed\n", "True\n"]
        assert len(family) == 3
        assert script.wait(20) == 0
        wait_until(lambda: not any(map(is_alive, family)))


def test_a_killed_script_leaves_no_process_even_if_a_fork_of_it_lives_on() -> None:
    with run_script(SCRIPT + FORK_AND_WAIT) as script:
        assert script.stdout is not None
        _, family = lines_until_interrupted(script)
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
