"""The CPU backend: found by name, immediate, and copying what it hands out."""

from __future__ import annotations

import torch

from thalweg.interfaces import load_backend
from thalweg.kernels import default_registry
from thalweg.kernels.backends.cpu import CpuBackend


def test_it_is_found_by_name() -> None:
    backend = load_backend("cpu")
    assert isinstance(backend, CpuBackend)
    assert backend.name == "cpu"
    assert backend.device == torch.device("cpu")
    assert backend.registry is default_registry()


def test_tensors_have_the_asked_shape_pinned_or_not() -> None:
    backend = CpuBackend()
    for pinned in (False, True):
        tensor = backend.empty((3, 0, 2), torch.bfloat16, pinned=pinned)
        assert tensor.shape == (3, 0, 2)
        assert tensor.dtype == torch.bfloat16


def test_events_have_passed_when_they_are_made() -> None:
    backend = CpuBackend()
    stream = backend.stream()
    event = stream.record()
    assert event.done()
    event.wait()
    stream.wait(event)


def test_a_host_copy_does_not_follow_later_writes() -> None:
    source = torch.zeros(3, requires_grad=True)
    copy, event = CpuBackend().copy_to_host(source)
    event.wait()
    with torch.no_grad():
        source += 1
    assert copy.tolist() == [0, 0, 0]
    assert not copy.requires_grad


def test_there_are_no_graphs_and_no_synchronisations_to_forbid() -> None:
    backend = CpuBackend()
    called = []
    assert backend.capture(lambda: called.append(1)) is None
    assert called == []
    with backend.no_host_sync():
        assert float(torch.ones(1)) == 1
