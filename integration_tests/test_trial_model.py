"""The trained checkpoint against its recorded losses and greedy continuations, without an engine around the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import thalweg.tiny
from thalweg.model import Model

GOLDEN = Path(__file__).parent / "golden"
WINDOWS = (0, 7, 12, 23)


@pytest.mark.parametrize(("mode", "key"), [("plain", "plain_nll"), ("quant", "quant_exact_nll")])
def test_losses_of_held_out_windows_are_the_recorded_ones(mode: str, key: str) -> None:
    model = Model.load(thalweg.tiny.checkpoint_path(), mode)
    recorded = json.loads((GOLDEN / "eval_nll.json").read_text())[key]
    windows = np.load(GOLDEN / "eval_windows.npy").astype(np.int64)
    for index in WINDOWS:
        tokens = torch.from_numpy(windows[index])
        (logits,) = model.forward_sequences([tokens[:-1]])
        loss = torch.nn.functional.cross_entropy(logits.double(), tokens[1:])
        assert float(loss) == pytest.approx(recorded[index], abs=1e-6), index


def test_greedy_tokens_and_their_margins_are_the_recorded_ones() -> None:
    model = Model.load(thalweg.tiny.checkpoint_path())
    cases = json.loads((GOLDEN / "greedy.json").read_text())
    sequences = [torch.tensor(case["prompt_token_ids"] + case["greedy_token_ids"][:-1]) for case in cases]
    for case, logits in zip(cases, model.forward_sequences(sequences), strict=True):
        rows = logits[len(case["prompt_token_ids"]) - 1 :]
        best = rows.topk(2, dim=1)
        assert best.indices[:, 0].tolist() == case["greedy_token_ids"], case["prompt"]
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        assert gaps == pytest.approx(case["top2_gaps"], abs=1e-4)
