"""Tests with several processes, one per rank, that talk over gloo on the loopback interface."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*.py"]

if TYPE_CHECKING:
    from eplb_ranks.launch import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator["Launcher"]:
    """Starts ranks, and kills what a failed test leaves of them."""
    from eplb_ranks.launch import Launcher

    launcher = Launcher(tmp_path)
    yield launcher
    launcher.kill_all()
