"""The guard against host synchronisation: one mode from the scopes of all threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch

from thalweg.interfaces import ConfigError, InvariantError, load_backend
from thalweg.kernels.backends.host_sync import FakeSyncMode, HostSyncError
from thalweg.kernels.sync_guard import SyncGuard, cuda_sync_mode


class RecordingMode(FakeSyncMode):
    """A mode that remembers what was set, and how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[str] = []
        self.num_reads = 0

    def get(self) -> str:
        self.num_reads += 1
        return super().get()

    def set(self, mode: str) -> None:
        self.history.append(mode)
        super().set(mode)


@pytest.fixture
def mode() -> RecordingMode:
    return RecordingMode()


@pytest.fixture
def guard(mode: RecordingMode) -> SyncGuard:
    return SyncGuard(mode.get, mode.set)


def run_all(bodies: list[Callable[[], None]]) -> None:
    """Run each body on a thread of its own; the first exception is raised here."""
    errors: list[BaseException] = []

    def caught(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def test_the_innermost_scope_of_a_thread_counts(guard: SyncGuard, mode: RecordingMode) -> None:
    forbid = guard.forbid()
    with forbid:
        assert (mode.get(), guard.intent) == ("error", "forbid")
        with guard.allow():
            assert (mode.get(), guard.intent) == ("default", "allow")
            with forbid, forbid:
                assert mode.get() == "error"
            assert mode.get() == "default"
        assert mode.get() == "error"
    assert (mode.get(), guard.intent) == ("default", None)
    with guard.allow():
        assert mode.get() == "default"


def test_the_mode_that_was_found_is_restored_also_after_an_exception(guard: SyncGuard, mode: RecordingMode) -> None:
    mode.set("warn")

    @guard.forbid()
    def fails() -> None:
        with guard.allow():
            assert mode.get() == "default"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert mode.get() == "warn"
    mode.set("default")
    with guard.forbid():
        pass
    assert mode.get() == "default", "the mode is looked up each time that a first scope opens"


def test_scopes_of_two_threads_may_close_in_any_order(guard: SyncGuard, mode: RecordingMode) -> None:
    mode.set("warn")
    opened, closed, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with guard.allow():
            seen.append(mode.get())
            opened.set()
            closed.wait(10)
            seen.append(mode.get())

    with guard.forbid():
        thread = threading.Thread(target=other)
        thread.start()
        opened.wait(10)
        assert mode.get() == "default", "a thread that may block is not disturbed"
    assert mode.get() == "default"
    closed.set()
    thread.join(10)
    assert seen == ["default", "default"]
    assert mode.get() == "warn", "nothing leaks"


def test_many_threads_that_forbid_leave_the_mode_as_it_was(guard: SyncGuard, mode: RecordingMode) -> None:
    mode.set("warn")
    barrier = threading.Barrier(16)
    seen: list[str] = []

    def body() -> None:
        for _ in range(20):
            with guard.forbid():
                barrier.wait(10)
                seen.append(mode.get())
                barrier.wait(10)

    run_all([body] * 16)
    assert set(seen) == {"error"}
    assert mode.get() == "warn"


def test_a_thread_that_may_block_never_meets_an_error_whatever_the_others_do() -> None:
    mode = FakeSyncMode()
    guard = SyncGuard(mode.get, mode.set)
    mode.set("warn")
    wrong: list[str] = []

    def body(seed: int) -> None:
        rng = random.Random(seed)

        def nest(depth: int) -> None:
            may_block = rng.random() < 0.4
            with guard.allow() if may_block else guard.forbid():
                for _ in range(rng.randrange(1, 4)):
                    if depth < 4 and rng.random() < 0.4:
                        nest(depth + 1)
                    if rng.random() < 0.3:
                        time.sleep(0)
                    found = mode.get()
                    if (may_block and found != "default") or found == "warn":
                        wrong.append(f"depth {depth}, may_block {may_block}: {found}")

        for _ in range(150):
            nest(0)

    run_all([lambda seed=seed: body(seed) for seed in range(8)])  # type: ignore[misc]
    assert wrong == []
    assert mode.get() == "warn"


def test_a_decorated_function_can_run_on_many_threads_and_call_itself(guard: SyncGuard, mode: RecordingMode) -> None:
    @guard.forbid()
    def forbidden(depth: int, *, offset: int = 0) -> int:
        """What it does."""
        assert mode.get() == "error"
        assert guard.intent == "forbid"
        return offset if depth == 0 else 1 + forbidden(depth - 1, offset=offset)

    assert forbidden.__name__ == "forbidden"
    assert forbidden.__doc__ == "What it does."
    results: list[int] = []
    run_all([lambda: results.extend(forbidden(depth, offset=1) for depth in range(20))] * 8)
    assert sorted(results) == sorted(list(range(1, 21)) * 8)
    assert mode.get() == "default"


def test_on_a_backend_the_guard_stops_reads_and_lets_events_pass() -> None:
    backend = load_backend("cpu")
    tensor = torch.arange(3)
    with backend.no_host_sync():
        launched = backend.stream().launch(lambda: tensor * 2)
        copied = backend.stream().launch(lambda: backend.copy_to_host(launched.value))
        event = backend.stream().record()
        with pytest.raises(HostSyncError):
            backend.read(tensor)
        event.wait()
        assert copied.value[0].tolist() == [0, 2, 4]
        with backend.allow_host_sync():
            assert backend.read(launched.value).tolist() == [0, 2, 4]
    assert backend.read(launched.value).tolist() == [0, 2, 4]
    backend.close()


def test_no_mode_is_touched_before_the_first_scope(guard: SyncGuard, mode: RecordingMode) -> None:
    scope, decorated = guard.forbid(), guard.allow()(lambda: 1)
    assert guard.intent is None
    assert (mode.num_reads, mode.history) == (0, [])
    with scope:
        assert decorated() == 1


def test_a_guard_that_is_off_leaves_the_mode_alone_and_still_decorates(mode: RecordingMode) -> None:
    guard = SyncGuard(mode.get, mode.set, enabled=False)

    @guard.forbid()
    def decorated(value: int) -> str:
        return f"{value} {mode._mode}"

    assert decorated(3) == "3 default"
    with guard.forbid(), guard.allow():
        assert guard.intent == "allow"
    assert (mode.num_reads, mode.history) == (0, [])
    guard.enabled = True
    assert decorated(3) == "3 error"
    assert mode.get() == "default"


def test_a_guard_can_be_switched_while_scopes_are_open(guard: SyncGuard, mode: RecordingMode) -> None:
    mode.set("warn")
    with guard.forbid():
        guard.enabled = False
        assert not guard.enabled
        assert mode.get() == "warn"
        with guard.forbid():
            assert mode.get() == "warn"
            guard.enabled = True
            assert mode.get() == "error"
        assert mode.get() == "error"
    assert mode.get() == "warn"


def test_a_scope_left_by_a_thread_that_did_not_enter_it_is_our_mistake(guard: SyncGuard, mode: RecordingMode) -> None:
    scope = guard.forbid()
    scope.__enter__()
    with pytest.raises(InvariantError, match=r"leaves a scope \(forbid\) that it did not enter"):
        run_all([lambda: scope.__exit__(None, None, None)])
    assert mode.get() == "error"
    scope.__exit__(None, None, None)
    assert mode.get() == "default"
    with pytest.raises(InvariantError, match="that it did not enter"):
        scope.__exit__(None, None, None)


def test_scopes_of_one_thread_may_close_out_of_order(guard: SyncGuard, mode: RecordingMode) -> None:
    forbid, allow = guard.forbid(), guard.allow()
    forbid.__enter__()
    allow.__enter__()
    forbid.__exit__(None, None, None)
    assert mode.get() == "default"
    allow.__exit__(None, None, None)
    assert guard.intent is None


def test_a_scope_whose_mode_cannot_be_set_is_not_open() -> None:
    def no_device(mode: object) -> None:
        raise OSError(f"no device for {mode}")

    guard = SyncGuard(lambda: "default", no_device)
    with pytest.raises(OSError, match="no device for error"):
        guard.forbid().__enter__()
    assert guard.intent is None
    assert guard._wanted == {"forbid": 0, "allow": 0}


def test_functions_that_suspend_themselves_cannot_be_decorated(guard: SyncGuard) -> None:
    def generates() -> object:
        yield 1

    async def awaits() -> None: ...

    for function in (generates, awaits):
        with pytest.raises(ConfigError, match="suspends itself"):
            guard.forbid()(function)


def test_making_a_guard_for_cuda_needs_no_cuda() -> None:
    before = torch.cuda.is_initialized()
    guard = SyncGuard(*cuda_sync_mode(), enabled=False)
    with guard.forbid():
        assert guard.intent == "forbid"
    assert torch.cuda.is_initialized() == before


@pytest.mark.gpu
def test_on_cuda_blocking_calls_are_errors_inside_and_the_mode_comes_back(cuda: torch.device) -> None:
    get, set_ = cuda_sync_mode()
    guard = SyncGuard(get, set_)
    x = torch.arange(4, device=cuda)
    set_("warn")
    try:
        with guard.forbid():
            y = x * 2
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
            with pytest.raises(RuntimeError, match="synchronizing"):
                y[0].item()
            with guard.allow():
                assert y.tolist() == [0, 2, 4, 6]
        assert get() == "warn"
    finally:
        set_("default")
