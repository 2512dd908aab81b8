"""Pairs of models, and tokens for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_testing.native_pairs import WIDTHS, Pair


@pytest.fixture(scope="session")
def load_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """Pair(**text keys of the config), written and loaded once each."""

    @functools.cache
    def load(**text: Any) -> Pair:
        return Pair.write(tmp_path_factory.mktemp("native") / "checkpoint", **text)

    return load


@pytest.fixture(scope="session")
def native_tokens() -> torch.Tensor:
    return torch.randint(5, WIDTHS["vocab_size"], (83,), generator=torch.Generator().manual_seed(2))
