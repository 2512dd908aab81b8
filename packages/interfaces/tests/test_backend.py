import importlib.metadata

import pytest

from thalweg.interfaces import BackendUnavailableError, ThalwegError, load_backend
from thalweg.interfaces import backend as backend_module


class FakeEntryPoint:
    name = "toy"

    def load(self) -> type:
        return FakeBackend


class FakeBackend:
    name = "toy"


def install(monkeypatch: pytest.MonkeyPatch, *entry_points: FakeEntryPoint) -> None:
    def entry_points_of(*, group: str) -> tuple[FakeEntryPoint, ...]:
        assert group == "thalweg.backends"
        return entry_points

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points_of)


def test_a_registered_backend_is_instantiated_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeEntryPoint())
    assert isinstance(load_backend("toy"), FakeBackend)


def test_an_unknown_backend_says_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeEntryPoint())
    with pytest.raises(BackendUnavailableError, match="no backend 'sm90' is installed; installed: toy"):
        load_backend("sm90")


def test_without_any_backend_the_message_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(BackendUnavailableError, match="installed: none"):
        load_backend("cpu")


def test_a_missing_backend_can_be_caught_as_an_import_error() -> None:
    assert issubclass(BackendUnavailableError, ImportError)
    assert issubclass(BackendUnavailableError, ThalwegError)
    assert backend_module.BACKEND_NAMES == ("cpu", "sm90", "sm100", "ascend")
