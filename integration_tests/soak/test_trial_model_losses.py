"""Every recorded window of the trained checkpoint, in both modes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import thalweg.tiny
from thalweg.model import Model

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(("mode", "key"), [("plain", "plain_nll"), ("quant", "quant_exact_nll")])
def test_the_loss_of_every_window_is_the_recorded_one(mode: str, key: str) -> None:
    model = Model.load(thalweg.tiny.checkpoint_path(), mode)
    recorded = json.loads((GOLDEN / "eval_nll.json").read_text())[key]
    windows = np.load(GOLDEN / "eval_windows.npy").astype(np.int64)
    assert len(windows) == len(recorded) == 24
    for tokens, expected in zip(torch.from_numpy(windows), recorded, strict=True):
        (logits,) = model.forward_sequences([tokens[:-1]])
        loss = torch.nn.functional.cross_entropy(logits.double(), tokens[1:])
        assert float(loss) == pytest.approx(expected, abs=1e-6)
