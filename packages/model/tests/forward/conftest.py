"""The tiny checkpoint of the vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from model_testing.cases import TINY_A

from thalweg.model import Model


@pytest.fixture(scope="session")
def load_tiny() -> Callable[..., Model]:
    """Model(mode, arithmetic) of the tiny checkpoint, loaded once each."""
    return functools.cache(lambda mode="quant", arithmetic="exact": Model.load(TINY_A, mode, arithmetic))


@pytest.fixture(scope="session")
def tiny_tokens() -> torch.Tensor:
    with np.load(TINY_A / "expected_quant_text.npz") as file:
        return torch.from_numpy(file["input_ids"])
