"""The CPU backend's stream: order, events, early reads, errors, nested launches, autograd state, threads, processes."""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from thalweg.interfaces import InvariantError
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.kernels.backends.fifo import LaunchedWorkError
from thalweg.kernels.backends.stream import FifoStream
from thalweg.kernels.testing import same_bits


@pytest.fixture
def stream() -> FifoStream:
    return CpuBackend().stream()


def failing() -> None:
    raise ZeroDivisionError("no such thing")


def test_work_runs_in_the_order_of_its_launches_on_one_other_thread(stream: FifoStream) -> None:
    order: list[int] = []
    threads = [stream.launch(lambda i=i: (order.append(i), threading.get_ident())[1]) for i in range(100)]
    stream.synchronize()
    assert order == list(range(100))
    assert len({launched.value for launched in threads}) == 1
    assert threads[0].value != threading.get_ident()


def test_launching_does_not_wait(stream: FifoStream) -> None:
    gate = threading.Event()
    stream.launch(gate.wait)
    event = stream.record()
    assert not event.done()
    gate.set()
    event.wait()
    assert event.done()


def test_an_event_does_not_wait_for_what_comes_after_it(stream: FifoStream) -> None:
    gate = threading.Event()
    first = stream.launch(lambda: 1)
    event = stream.record()
    stream.launch(gate.wait)
    event.wait()
    assert first.value == 1
    gate.set()


def test_an_event_of_an_empty_stream_has_passed(stream: FifoStream) -> None:
    event = stream.record()
    assert event.done()
    event.wait()


def test_the_host_may_read_a_result_only_after_an_event_behind_it(stream: FifoStream) -> None:
    before = stream.record()
    ran = threading.Event()
    launched = stream.launch(lambda: ran.set() or 7)
    with pytest.raises(InvariantError, match="is read too early"):
        _ = launched.value
    ran.wait()
    before.wait()
    with pytest.raises(InvariantError, match="behind work 0"):
        _ = launched.value
    stream.record().wait()
    assert launched.value == 7


def test_a_result_that_is_there_by_luck_is_still_read_too_early(stream: FifoStream) -> None:
    launched, next_runs = stream.launch(lambda: 7), threading.Event()
    after = stream.record()
    stream.launch(next_runs.set)
    next_runs.wait()
    with pytest.raises(InvariantError, match="work 1 has run, by luck"):
        _ = launched.value
    assert after.done()
    assert launched.value == 7


def test_later_work_reads_the_results_of_earlier_work(stream: FifoStream) -> None:
    first = stream.launch(lambda: torch.ones(3))
    second = stream.launch(lambda: first.value * 2)
    stream.record().wait()
    assert second.value.tolist() == [2, 2, 2]


def test_work_cannot_read_or_await_what_lies_behind_itself(stream: FifoStream) -> None:
    gate, box = threading.Event(), []
    stream.launch(lambda: gate.wait() and box[0].value)
    box.append(stream.launch(lambda: 1))
    gate.set()
    with pytest.raises(LaunchedWorkError, match="reads a result of work behind itself"):
        stream.synchronize()

    other = CpuBackend().stream()
    gate.clear()
    other.launch(lambda: gate.wait() and box[1].wait())
    other.launch(lambda: 1)
    box.append(other.record())
    gate.set()
    with pytest.raises(LaunchedWorkError, match="waits for work behind itself"):
        other.synchronize()


def test_arguments_die_with_the_work_and_results_with_their_handle(stream: FifoStream) -> None:
    held = torch.ones(1)
    launched = stream.launch(functools.partial(torch.add, held, 1))
    stream.synchronize()
    argument, result = weakref.ref(held), weakref.ref(launched.value)
    del held, launched
    gc.collect()
    assert argument() is None
    assert result() is None


def test_a_stream_waits_for_an_event_of_another(stream: FifoStream) -> None:
    other, gate, order = CpuBackend().stream(), threading.Event(), []
    other.launch(gate.wait)
    made = other.launch(lambda: order.append("other") or 3)
    event = other.record()
    stream.wait(event)
    got = stream.launch(lambda: order.append("stream") or made.value + 1)
    end = stream.record()
    assert not end.done()
    gate.set()
    end.wait()
    assert order == ["other", "stream"]
    assert got.value == 4
    assert made.value == 3, "what the awaited stream knows to have passed may be read"


def test_waiting_for_an_event_of_its_own_queues_nothing(stream: FifoStream) -> None:
    stream.launch(lambda: 1)
    stream.wait(stream.record())
    assert stream._queue.end() == 1


def test_an_error_comes_out_of_every_wait_behind_it_and_nothing_behind_it_runs(stream: FifoStream) -> None:
    ran = []
    good = stream.launch(lambda: 1)
    before = stream.record()
    bad = stream.launch(failing)
    after = stream.record()
    skipped = stream.launch(lambda: ran.append(1))
    before.wait()
    assert good.value == 1
    waits: list[Callable[[], Any]] = [after.wait, stream.synchronize, stream.record().wait, after.wait]
    for wait in waits:
        with pytest.raises(LaunchedWorkError, match=r"work 2 of cpu-stream-\d+ raised ZeroDivisionError: no such") as e:
            wait()
        assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert after.done()
    for launched in (bad, skipped):
        with pytest.raises(LaunchedWorkError, match="ZeroDivisionError"):
            _ = launched.value
    assert good.value == 1
    stream.launch(lambda: ran.append(2))
    with pytest.raises(LaunchedWorkError):
        stream.synchronize()
    assert ran == []


def test_an_error_goes_over_to_a_stream_that_waits_for_it(stream: FifoStream) -> None:
    other = CpuBackend().stream()
    other.launch(failing)
    stream.wait(other.record())
    unreached = stream.launch(lambda: 1)
    with pytest.raises(LaunchedWorkError, match=r"raised LaunchedWorkError: work 1 of .* ZeroDivisionError"):
        stream.synchronize()
    with pytest.raises(LaunchedWorkError):
        _ = unreached.value


def test_closing_is_quiet_after_an_error_and_logs_one_that_nobody_has_seen(caplog: pytest.LogCaptureFixture) -> None:
    seen, unseen = CpuBackend(), CpuBackend()
    for backend in (seen, unseen):
        backend.stream().launch(failing)
    with pytest.raises(LaunchedWorkError):
        seen.stream().synchronize()
    with caplog.at_level(logging.ERROR):
        seen.close()
        assert caplog.records == []
        unseen.close()
    assert ["and nothing waited for it" in record.message for record in caplog.records] == [True]


def test_work_launched_by_work_runs_inside_it(stream: FifoStream) -> None:
    order: list[str] = []

    def outer() -> int:
        order.append("outer begins")
        inner = stream.launch(lambda: order.append("inner") or 20)
        event = stream.record()
        event.wait()
        stream.wait(event)
        stream.synchronize()
        assert event.done()
        order.append("outer ends")
        return inner.value + 1

    gate = threading.Event()
    stream.launch(gate.wait)
    launched = stream.launch(outer)
    stream.launch(lambda: order.append("next"))
    gate.set()
    stream.synchronize()
    assert order == ["outer begins", "inner", "outer ends", "next"]
    assert launched.value == 21


def test_an_event_recorded_by_work_passes_with_the_end_of_that_work(stream: FifoStream) -> None:
    gate, box, inside = threading.Event(), [], threading.Event()
    stream.launch(lambda: (box.append(stream.record()), inside.set(), gate.wait()))
    stream.launch(lambda: None)
    inside.wait()
    assert not box[0].done()
    gate.set()
    box[0].wait()


def test_what_nested_work_raises_comes_out_of_the_launch(stream: FifoStream) -> None:
    def outer() -> str:
        try:
            stream.launch(failing)
        except ZeroDivisionError:
            return "caught"
        return "not raised"

    launched = stream.launch(outer)
    stream.synchronize()
    assert launched.value == "caught"


def test_backends_are_independent() -> None:
    blocked, free = CpuBackend().stream(), CpuBackend().stream()
    gate = threading.Event()
    blocked.launch(gate.wait)
    free.launch(lambda: 1)
    free.synchronize()
    assert not blocked.record().done()
    gate.set()
    blocked.synchronize()


def test_work_may_launch_on_another_backend(stream: FifoStream) -> None:
    other = CpuBackend().stream()
    outer = stream.launch(lambda: other.launch(lambda: 3))
    stream.synchronize()
    other.synchronize()
    assert outer.value.value == 3


@pytest.mark.parametrize("mode", ["inference", "no_grad", "grad"])
def test_work_runs_in_the_autograd_state_of_its_launcher(stream: FifoStream, mode: str) -> None:
    weight = torch.ones(2, requires_grad=True)
    gate = threading.Event()
    stream.launch(gate.wait)
    with torch.inference_mode(mode == "inference"), torch.set_grad_enabled(mode == "grad"):
        launched = stream.launch(lambda: (weight * 2, torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        nested = stream.launch(lambda: stream.launch(torch.is_inference_mode_enabled).value)
    gate.set()
    stream.synchronize()
    product, is_inference, is_grad = launched.value
    assert is_inference == nested.value == product.is_inference() == (mode == "inference")
    assert is_grad == product.requires_grad == (mode == "grad")


def test_work_has_as_many_torch_threads_as_its_launcher(stream: FifoStream) -> None:
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 1, 3):
            torch.set_num_threads(count)
            launched = stream.launch(torch.get_num_threads)
            stream.synchronize()
            assert launched.value == count
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_same_bits_as_on_the_host_thread(stream: FifoStream, dtype: torch.dtype) -> None:
    ops = bind("cpu")
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(37, 256, dtype=dtype, generator=generator)
    weight = torch.randn(512, 256, dtype=dtype, generator=generator)
    long = torch.randn(3, 50_000, dtype=dtype, generator=generator)
    computations: list[Callable[[], torch.Tensor]] = [
        lambda: ops.matmul(x, weight),
        lambda: x @ weight.t(),
        lambda: ops.rms_norm(x, weight[0], 1e-6),
        lambda: torch.softmax(long, -1),
        lambda: long.sum(-1),
        lambda: ops.log_softmax(long),
        lambda: torch.randn(1000, generator=torch.Generator().manual_seed(1)).sort().values,
    ]
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            launched = [stream.launch(compute) for compute in computations]
            stream.synchronize()
            for compute, there in zip(computations, launched, strict=True):
                assert same_bits(there.value, compute())
    finally:
        torch.set_num_threads(before)


def test_many_threads_can_launch_and_wait() -> None:
    stream, total = CpuBackend().stream(), torch.zeros(8, dtype=torch.int64)
    failures: list[str] = []

    def client(number: int) -> None:
        for turn in range(100):
            launched = stream.launch(lambda: total[number].add_(1).clone())
            stream.record().wait()
            if int(launched.value) != turn + 1:
                failures.append(f"client {number}, turn {turn}: {launched.value}")

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(60)
    assert failures == []
    assert total.tolist() == [100] * 8


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    script = "import threading, time, torch\nfrom thalweg.kernels.backends.cpu import CpuBackend\n"
    script += textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_a_process_that_ends_without_closing_ends_cleanly_and_soon() -> None:
    ended = run_script(
        """
        backend = CpuBackend()
        x = torch.randn(300, 300)
        stream, events = backend.stream(), []
        for _ in range(1000):
            stream.launch(lambda: (time.sleep(0.05), x @ x, print("ran", flush=True)))
            events.append(stream.record())
        stream.launch(lambda: print("the last"))
        events[1].wait()
        """
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert 2 <= ended.stdout.count("ran") < 200
    assert "the last" not in ended.stdout


def test_an_exception_on_the_main_thread_ends_the_process_while_work_is_queued() -> None:
    ended = run_script(
        """
        backend = CpuBackend()
        for _ in range(10_000):
            backend.stream().launch(lambda: time.sleep(0.01))
        raise SystemExit(3)
        """
    )
    assert ended.returncode == 3, ended.stderr


def test_a_close_that_was_interrupted_can_be_repeated() -> None:
    ended = run_script(
        """
        import signal
        gate = threading.Event()
        backend = CpuBackend()
        backend.stream().launch(lambda: (gate.wait(), time.sleep(0.3), print("ran")))
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            backend.close()
        except KeyboardInterrupt:
            print("interrupted")
        gate.set()
        backend.close()
        print("closed")
        """
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["interrupted", "ran", "closed"]


def _child(backend: CpuBackend, results: Any) -> None:
    try:
        backend.stream().launch(lambda: 1)
        backend.stream().synchronize()
        outcome = "works"
    except InvariantError as error:
        outcome = str(error)
    backend.close()
    own = CpuBackend().stream()
    launched = own.launch(lambda: 6)
    own.synchronize()
    results.put((outcome, launched.value))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.parametrize("used", [False, True])
def test_a_forked_process_can_use_a_backend_that_was_not_used_before(used: bool) -> None:
    backend = CpuBackend()
    if used:
        backend.stream().launch(lambda: 1)
        backend.stream().synchronize()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(backend, results))
    child.start()
    outcome, own = results.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert own == 6
    if used:
        assert "does not follow a fork" in outcome
        assert f"process {child.pid} needs a backend of its own" in outcome
        backend.stream().synchronize()
    else:
        assert outcome == "works"
