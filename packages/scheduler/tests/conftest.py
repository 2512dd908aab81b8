"""Both cores, so that every test of behaviour runs against each."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scheduler_testing.cores import CORE_NAMES, Core, load_core


@pytest.fixture(params=CORE_NAMES)
def core(request: pytest.FixtureRequest) -> Core:
    return load_core(request.param)
