"""Tests with several processes, one per rank, that talk over gloo on the loopback interface."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rank_testing.launch import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Starts ranks, and kills what a failed test leaves of them."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.kill_all()
