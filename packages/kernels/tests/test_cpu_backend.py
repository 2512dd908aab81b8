"""The CPU backend: found by name, its copies, its ban on host synchronisation, and what closing it means."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from thalweg.interfaces import ConfigError, InvariantError, load_backend
from thalweg.kernels import default_registry
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.kernels.backends.fifo import LaunchedWorkError
from thalweg.kernels.backends.host_sync import FakeSyncMode, HostSyncError


def threads_of(backend: CpuBackend) -> list[threading.Thread]:
    name = backend.stream().launch(lambda: threading.current_thread().name)
    backend.stream().record().wait()
    return [thread for thread in threading.enumerate() if thread.name == name.value]


def test_it_is_found_by_name() -> None:
    backend = load_backend("cpu")
    assert isinstance(backend, CpuBackend)
    assert backend.name == "cpu"
    assert backend.device == torch.device("cpu")
    assert backend.registry is default_registry()
    assert backend.stream() is backend.stream()


def test_tensors_have_the_asked_shape_pinned_or_not() -> None:
    backend = CpuBackend()
    for pinned in (False, True):
        tensor = backend.empty((3, 0, 2), torch.bfloat16, pinned=pinned)
        assert tensor.shape == (3, 0, 2)
        assert tensor.dtype == torch.bfloat16


def test_there_are_no_graphs() -> None:
    called = []
    assert CpuBackend().capture(lambda: called.append(1)) is None
    assert called == []


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 2)])
def test_a_host_copy_is_valid_once_its_event_has_passed(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    backend, gate = CpuBackend(), threading.Event()
    source = torch.zeros(shape).to(dtype)
    stream = backend.stream()
    stream.launch(gate.wait)
    stream.launch(lambda: source.fill_(1))
    copy, event = backend.copy_to_host(source)
    stream.launch(lambda: source.fill_(0))
    assert not event.done()
    if copy.numel() and dtype != torch.bool:
        early = copy.float()
        assert not bool(((early == 0) | (early == 1)).any()), "a copy that is read too early must not look right"
    gate.set()
    event.wait()
    assert copy.shape == shape
    assert copy.dtype == dtype
    assert bool((copy.float() == 1).all())


def test_a_copy_made_by_launched_work_is_made_in_its_place_in_the_queue() -> None:
    backend = CpuBackend()
    source = torch.zeros(3, requires_grad=True)
    stream = backend.stream()
    copied = stream.launch(lambda: backend.copy_to_host(source))
    with torch.no_grad():
        stream.launch(lambda: source.add_(1))
    stream.synchronize()
    copy, event = copied.value
    event.wait()
    assert copy.tolist() == [0, 0, 0]
    assert not copy.requires_grad
    assert source.tolist() == [1, 1, 1]


def test_reading_waits_for_all_that_was_launched_and_copies() -> None:
    backend, source = CpuBackend(), torch.zeros(2)
    for _ in range(50):
        backend.stream().launch(lambda: source.add_(1))
    got = backend.read(source)
    backend.stream().launch(lambda: source.add_(1))
    backend.stream().synchronize()
    assert got.tolist() == [50, 50]


def test_blocking_calls_are_errors_where_they_are_forbidden_and_events_are_not() -> None:
    backend = CpuBackend()
    tensor = torch.ones(1)
    with backend.no_host_sync():
        launched = backend.stream().launch(lambda: tensor + 1)
        with pytest.raises(HostSyncError, match="inside no_host_sync"):
            backend.read(tensor)
        with pytest.raises(RuntimeError, match="inside no_host_sync"):
            backend.stream().synchronize()
        event = backend.stream().record()
        event.wait()
        assert event.done()
        assert launched.value.tolist() == [2]
        with backend.allow_host_sync():
            assert backend.read(tensor).tolist() == [1]
            backend.stream().synchronize()
        with pytest.raises(HostSyncError):
            backend.read(tensor)
    assert backend.read(tensor).tolist() == [1]


def test_a_decorated_function_is_forbidden_to_block() -> None:
    backend = CpuBackend()

    @backend.no_host_sync()
    def blocks() -> torch.Tensor:
        return backend.read(torch.ones(1))

    with pytest.raises(HostSyncError):
        blocks()
    backend.guard.enabled = False
    assert blocks().tolist() == [1]


def test_work_keeps_the_ban_it_was_launched_under_whenever_it_runs() -> None:
    backend, gate = CpuBackend(), threading.Event()
    stream = backend.stream()

    def lifted() -> list[float]:
        with backend.allow_host_sync():
            return list(backend.read(torch.ones(1)).tolist())

    free = stream.launch(lambda: gate.wait() and backend.read(torch.ones(1)).tolist())
    with backend.no_host_sync():
        allowed = stream.launch(lifted)
        passed = stream.record()
        stream.launch(lambda: backend.read(torch.ones(1)))
        failed = stream.record()
        gate.set()
        passed.wait()
    assert free.value == [1]
    assert allowed.value == [1]
    with pytest.raises(LaunchedWorkError, match="HostSyncError: the host would block") as raised:
        failed.wait()
    assert isinstance(raised.value.__cause__, HostSyncError)


def test_work_can_ban_blocking_by_itself() -> None:
    backend = CpuBackend()

    def bans() -> None:
        with backend.no_host_sync():
            backend.stream().synchronize()

    backend.stream().launch(bans)
    with pytest.raises(LaunchedWorkError, match="HostSyncError"):
        backend.stream().synchronize()


def test_a_ban_on_one_backend_is_none_on_another() -> None:
    one, other = CpuBackend(), CpuBackend()
    with one.no_host_sync():
        assert other.read(torch.ones(1)).tolist() == [1]


def test_the_fake_mode_warns_when_it_is_set_to_warn_and_refuses_other_words() -> None:
    backend = CpuBackend()
    backend._host_sync.mode.set("warn")
    with pytest.warns(UserWarning, match="the host blocks on the device"):
        backend.read(torch.ones(1))
    with pytest.raises(ConfigError, match="mode is 'quiet'; default, warn, error are accepted"):
        FakeSyncMode().set("quiet")


def test_the_thread_starts_with_the_first_work_and_ends_with_close() -> None:
    before = threading.active_count()
    backend = CpuBackend()
    backend.stream().synchronize()
    assert threading.active_count() == before
    (thread,) = threads_of(backend)
    assert thread.daemon
    backend.close()
    assert not thread.is_alive()
    backend.close()


def test_closing_finishes_what_is_queued_and_keeps_it_readable() -> None:
    backend, gate, done = CpuBackend(), threading.Event(), []
    stream = backend.stream()
    stream.launch(gate.wait)
    last = stream.launch(lambda: done.append(1) or "last")
    event = stream.record()
    threading.Timer(0.05, gate.set).start()
    backend.close()
    assert done == [1]
    event.wait()
    assert last.value == "last"
    assert backend.read(torch.ones(1)).tolist() == [1]
    with pytest.raises(InvariantError, match=r"cpu-stream-\d+ is closed"):
        stream.launch(lambda: None)


def test_a_backend_that_was_never_used_can_be_closed() -> None:
    backend = CpuBackend()
    backend.close()
    with pytest.raises(InvariantError, match="closed"):
        backend.stream().launch(lambda: None)


def test_closing_from_launched_work_does_not_wait_for_itself() -> None:
    backend = CpuBackend()
    (thread,) = threads_of(backend)
    backend.stream().launch(backend.close)
    backend.stream().synchronize()
    thread.join(10)
    assert not thread.is_alive()


def test_a_forgotten_backend_finishes_its_work_and_ends_its_thread() -> None:
    backend, gate = CpuBackend(), threading.Event()
    (thread,) = threads_of(backend)
    backend.stream().launch(gate.wait)
    launched = backend.stream().launch(lambda: 5)
    event = backend.stream().record()
    gone = weakref.ref(backend)
    del backend
    gc.collect()
    assert gone() is None
    gate.set()
    event.wait()
    assert launched.value == 5
    thread.join(10)
    assert not thread.is_alive()
