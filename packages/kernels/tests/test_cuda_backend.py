"""The backend of Hopper GPUs keeps the contract of `thalweg.interfaces.Backend`, on the device itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from thalweg.interfaces import InvariantError, load_backend
from thalweg.kernels.backends.fifo import LaunchedWorkError
from thalweg.kernels.backends.sm90 import Sm90Backend

pytestmark = pytest.mark.gpu

LONG = 1 << 26
"""Numbers that a graph works on."""
CYCLES = 200_000_000
"""A tenth of a second."""


@pytest.fixture
def backend(hopper: torch.device) -> Iterator[Sm90Backend]:
    backend = load_backend("sm90")
    assert isinstance(backend, Sm90Backend)
    yield backend
    backend.close()
    torch.cuda.set_sync_debug_mode("default")


def keep_busy() -> None:
    """Queue a tenth of a second of work."""
    torch.cuda._sleep(CYCLES)


def test_it_says_what_it_is(backend: Sm90Backend) -> None:
    assert (backend.name, backend.architecture, backend.device.type) == ("sm90", "sm_90a", "cuda")
    assert backend.stream() is backend.stream()
    assert backend.has_graphs
    assert backend.empty((3, 0, 2), torch.bfloat16).device == backend.device
    assert backend.empty((3,), torch.int32, pinned=True).is_pinned()


def test_launched_work_runs_in_order_and_tells_how_long_it_took(backend: Sm90Backend) -> None:
    stream = backend.stream()
    x = torch.zeros(4, device=backend.device)
    x.add_(1).mul_(0)  # what is used for the first time is loaded, which takes longer than the device is kept busy
    slow = stream.launch(keep_busy)
    added = stream.launch(lambda: x.add_(1))
    doubled = stream.launch(lambda: added.value.mul_(2))
    event = stream.record()
    assert not event.done()
    with pytest.raises(InvariantError, match="once it has run"):
        _ = doubled.timing.span_ns
    event.wait()
    assert event.done()
    assert doubled.value.tolist() == [2, 2, 2, 2]
    spans = [each.timing.span_ns for each in (slow, added, doubled)]
    assert all(start <= end for start, end in spans)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    assert 5e7 < spans[0][1] - spans[0][0] < 1e9


def test_an_event_holds_work_of_this_stream_and_passes_once(backend: Sm90Backend) -> None:
    stream = backend.stream()
    stream.launch(keep_busy)
    event = stream.record()
    stream.wait(event)
    event.wait()
    event.wait()
    assert event.done()


def test_what_work_raises_comes_out_of_events_behind_it_and_stops_the_stream(backend: Sm90Backend) -> None:
    stream = backend.stream()
    before = stream.record()
    ran = []

    def fail() -> None:
        raise ValueError("no such thing")

    failed = stream.launch(fail)
    later = stream.launch(lambda: ran.append(1))
    before.wait()
    for act in (stream.record().wait, stream.record().wait, stream.synchronize, lambda: failed.value):
        with pytest.raises(LaunchedWorkError, match="ValueError: no such thing"):
            act()
    with pytest.raises(LaunchedWorkError):
        _ = later.value
    assert ran == []


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 2)])
def test_a_host_copy_is_valid_once_its_event_has_passed(
    backend: Sm90Backend, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    source = torch.zeros(shape, device=backend.device).to(dtype)
    stream = backend.stream()
    stream.launch(keep_busy)
    stream.launch(lambda: source.fill_(1))
    copy, event = backend.copy_to_host(source)
    stream.launch(lambda: source.fill_(0))
    assert copy.is_pinned() == (copy.numel() > 0)
    event.wait()
    assert (copy.shape, copy.dtype, copy.device.type) == (shape, dtype, "cpu")
    assert bool((copy.float() == 1).all())
    assert bool((backend.read(source).float() == 0).all())


def test_a_strided_tensor_is_copied_as_what_it_shows(backend: Sm90Backend) -> None:
    source = torch.arange(12, device=backend.device).view(3, 4)[:, 1::2]
    copy, event = backend.copy_to_host(source)
    event.wait()
    assert copy.tolist() == [[1, 3], [5, 7], [9, 11]]


def test_pinned_memory_that_is_let_go_is_not_used_again_before_its_upload_has_run(backend: Sm90Backend) -> None:
    stream, results = backend.stream(), []
    stream.launch(keep_busy)
    for value in range(200):
        staged = backend.empty((1 << 12,), torch.int32, pinned=True)
        staged.fill_(value)
        results.append(stream.launch(lambda staged=staged: staged.to(backend.device, non_blocking=True)))
        del staged
    assert not stream.record().done(), "the uploads wait behind other work"
    stream.synchronize()
    assert [int(result.value[0]) for result in results] == list(range(200))
    assert [int(result.value[-1]) for result in results] == list(range(200))


def test_host_copies_that_are_let_go_do_not_disturb_those_that_follow(backend: Sm90Backend) -> None:
    stream = backend.stream()
    sources = [torch.full((1 << 12,), value, device=backend.device) for value in range(100)]
    stream.synchronize()
    stream.launch(keep_busy)
    kept = []
    for value, source in enumerate(sources):
        copy, event = backend.copy_to_host(source)
        if value % 2:
            kept.append((value, copy, event))
        del copy
    for value, copy, event in kept:
        event.wait()
        assert bool((copy == value).all())


def test_calls_that_block_are_errors_where_that_is_forbidden(backend: Sm90Backend) -> None:
    x = torch.ones(3, device=backend.device)
    for block in (lambda: x.sum().item(), lambda: backend.read(x), backend.stream().synchronize, x.nonzero):
        with backend.no_host_sync(), pytest.raises(RuntimeError, match="synchroniz"):
            block()
        block()
    with backend.no_host_sync():
        backend.stream().launch(lambda: x.add_(1))
        backend.stream().record().wait()
        with backend.allow_host_sync():
            assert x.sum().item() == 6
    backend.guard.enabled = False
    with backend.no_host_sync():
        assert x.sum().item() == 6


def test_a_graph_follows_the_contents_of_its_inputs(backend: Sm90Backend) -> None:
    source, result = (torch.zeros(8, device=backend.device) for _ in range(2))
    calls = []

    def work() -> None:
        calls.append(1)
        result.copy_(source * 2 + 1)

    graph = backend.capture(work)
    assert len(calls) == 2, "once to warm up, once captured"
    stream = backend.stream()
    for value in (3, 5):
        stream.launch(lambda value=value: source.fill_(value))
        stream.launch(graph.replay)
        copy, event = backend.copy_to_host(result)
        event.wait()
        assert copy.tolist() == [2 * value + 1] * 8


def test_graphs_share_their_memory(backend: Sm90Backend) -> None:
    result = torch.zeros(1, device=backend.device)

    def work(size: int) -> None:
        x = torch.ones(size, device=backend.device)
        for _ in range(4):
            x = x + 1
        result.copy_(x[-1:])

    backend.release_memory()
    before = backend.memory().used_bytes
    graphs = [backend.capture(lambda size=size: work(size)) for size in range(LONG, LONG - 5 * 4096, -4096)]
    backend.release_memory()
    assert backend.memory().used_bytes - before < 4 * 4 * LONG, "not five times as much"
    for graph in (graphs[3], graphs[0], graphs[4]):
        result.zero_()
        graph.replay()
        assert result.item() == 5
    del graphs, graph
    gc.collect()
    backend.release_memory()
    assert backend.memory().used_bytes - before < 1 << 22
    backend.capture(lambda: work(64)).replay()
    assert result.item() == 5


def test_a_capture_that_blocks_fails_and_the_device_goes_on(backend: Sm90Backend) -> None:
    x = torch.ones(3, device=backend.device)
    with pytest.raises(RuntimeError):
        backend.capture(lambda: x.sum().item())
    graph = backend.capture(lambda: x.add_(1))
    graph.replay()
    assert x.tolist() == [3, 3, 3]


def test_memory_is_told_and_given_back(backend: Sm90Backend) -> None:
    backend.release_memory()
    before = backend.memory()
    assert 0 < before.free_bytes <= before.total_bytes
    taken = torch.empty(1 << 30, dtype=torch.uint8, device=backend.device)
    during = backend.memory()
    assert during.used_bytes - before.used_bytes >= 1 << 30
    assert before.free_bytes - during.free_bytes >= 1 << 30
    del taken
    assert backend.memory().used_bytes == during.used_bytes, "kept for the next tensor"
    backend.release_memory()
    after = backend.memory()
    assert after.used_bytes == before.used_bytes
    assert after.peak_bytes < during.peak_bytes


def test_nothing_is_launched_after_close(backend: Sm90Backend) -> None:
    backend.close()
    backend.close()
    with pytest.raises(InvariantError, match="is closed"):
        backend.stream()
