"""Workers of a zygote in which others have something to say at a fork."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_testing.grammars import quick
from service_testing.services import make_service

AS_ASYNCIO_DOES = """
import os, signal
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
"""
"""From Python 3.12 on, wherever it is imported."""


def test_a_fork_handler_may_have_reset_what_signals_wake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(AS_ASYNCIO_DOES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with make_service() as service:
        assert service.compile(quick(0)).result(60)
