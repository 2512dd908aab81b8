"""Which ops the engine calls on a device, that a Hopper GPU has kernels for all of them, and what is said where not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_testing.graphing import GraphingBackend

import thalweg.cache
import thalweg.engine
import thalweg.model.drafter.cached
import thalweg.model.native
from thalweg.engine import EngineConfig, assembly
from thalweg.engine.device_ops import DEVICE_OPS, check_ops, missing_ops
from thalweg.interfaces import BackendUnavailableError
from thalweg.kernels import Registry, bind, default_registry
from thalweg.kernels.sm90.library import ARCHITECTURE

HOLDERS = ("ops", "_ops")
"""What bound ops are called."""


def sources() -> Iterator[Path]:
    for package in (thalweg.cache, thalweg.engine, thalweg.model.native):
        yield from Path(package.__path__[0]).rglob("*.py")
    yield Path(thalweg.model.drafter.cached.__file__)


def called() -> set[str]:
    """Names that sources take of bound ops."""
    nodes = (node for path in sources() for node in ast.walk(ast.parse(path.read_text())))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            holder = getattr(node.value, "attr", None) or getattr(node.value, "id", None)
            if holder in HOLDERS and not node.attr.startswith("_"):
                found.add(node.attr)
    return found & set(default_registry().ops)


def test_the_list_is_what_the_sources_call() -> None:
    assert list(DEVICE_OPS) == sorted(called())


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_hopper_gpu_has_a_kernel_for_every_one(batch_invariant: bool) -> None:
    assert missing_ops(bind("sm90", batch_invariant=batch_invariant, architecture=ARCHITECTURE)) == []


def without(registry: Registry, backend: str, *ops: str) -> Registry:
    """The registry with nothing that computes these ops on a backend."""
    entries = [entry for op in registry.ops for entry in registry.implementations(op, backend) if op not in ops]
    others = [entry for op in registry.ops for entry in registry.implementations(op, "cpu") if backend != "cpu"]
    return Registry([registry.spec(op) for op in registry.ops], [*entries, *others])


class PoorBackend(GraphingBackend):
    """Lacks two ops."""

    @property
    def registry(self) -> Registry:
        return without(default_registry(), "cpu", "draw", "topk_gate")


def test_ops_that_a_backend_lacks_are_named_before_anything_is_loaded(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "load_backend", lambda name: PoorBackend())
    expected = r"cpu has nothing that computes draw, topk_gate; .* --kernels draw=reference,topk_gate=reference, or"
    with pytest.raises(BackendUnavailableError, match=expected):
        assembly.build_engine(EngineConfig.build(environ={}, model=checkpoint, arithmetic="native"))


def test_ops_that_are_asked_for_by_name_are_not_missing() -> None:
    registry = without(default_registry(), "sm90", "draw")
    assert missing_ops(bind("sm90", architecture=ARCHITECTURE, registry=registry)) == ["draw"]
    check_ops(bind("sm90", {"draw": "reference"}, architecture=ARCHITECTURE, registry=registry), "sm90")
