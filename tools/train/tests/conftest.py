"""Tests import the stages as `tools.train`, from the root of the repository, and their helpers from this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[3]))
