"""The shipped checkpoint against its recorded figures: losses, routing, continuations, and what its drafts are worth.

`python -m tools.train.evaluate.baselines` recorded them. The runs are the same, so on one kind of machine everything is
equal; the tolerances are for others, where a sum may round another way.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.train.evaluate.baselines import MODES, NUM_TOKENS, fingerprint
from tools.train.evaluate.serving import DraftFigures, serve_drafts, serve_windows

from thalweg.engine.cli import main
from thalweg.interfaces import RequestOutput
from thalweg.model import Checkpoint, Model
from thalweg.tiny import checkpoint_path

GOLDEN = Path(__file__).parent / "golden"
RECORDED = json.loads((GOLDEN / "baselines.json").read_text(encoding="utf-8"))
GREEDY = RECORDED["greedy"]
NATS = {"plain": 1e-3, "quant": 1e-5}
"""Of a window's loss: plain is in float32, quant in exact arithmetic, told in float32."""
LOAD = 0.02
"""Of a largest load over the mean: some twenty of two thousand rows."""
NEAR_TIE = 1e-3
"""A gap between the two best logits below which another arithmetic may take the other token."""
SHARE = 0.05
"""Of acceptance, confidence and calibration error."""
TOKENS_PER_STEP = 0.1


def serve_recorded(temperature: float) -> tuple[list[RequestOutput], DraftFigures]:
    prompts = [case["prompt_token_ids"] for case in GREEDY]
    outputs, told = serve_drafts(checkpoint_path(), prompts, temperature, NUM_TOKENS)
    assert told is not None
    return outputs, told


def check_drafts(told: DraftFigures, temperature: float) -> None:
    """They are accepted as recorded, and promised as recorded."""
    recorded = RECORDED["drafts"][f"{temperature:g}"]
    assert told.tokens_per_step == pytest.approx(recorded["tokens_per_step"], abs=TOKENS_PER_STEP)
    for name in ("acceptance", "confidence", "calibration_error"):
        assert getattr(told, name) == pytest.approx(recorded[name], abs=SHARE), name


def test_the_figures_are_of_this_checkpoint() -> None:
    assert fingerprint(checkpoint_path()) == RECORDED["sha256"]


def test_the_strict_loader_and_the_command_find_nothing_wrong() -> None:
    Checkpoint.open(checkpoint_path(), strict=True).close()
    assert main(["inspect", str(checkpoint_path())]) == 0


@pytest.mark.parametrize("mode", MODES)
def test_losses_and_loads_of_held_out_windows(mode: str) -> None:
    windows = np.load(GOLDEN / "baseline_windows.npy")
    told = serve_windows(checkpoint_path(), windows, mode, MODES[mode])
    recorded = RECORDED["windows"][mode]
    assert told.losses == pytest.approx(recorded["losses"], abs=NATS[mode])
    assert told.largest_loads == pytest.approx(recorded["largest_loads"], abs=LOAD)


def test_greedy_tokens_up_to_the_first_near_tie_and_their_drafts() -> None:
    """One run for both: it takes a quarter of the time of this file."""
    outputs, told = serve_recorded(0.0)
    check_drafts(told, 0.0)
    for case, output in zip(GREEDY, outputs, strict=True):
        near = [place for place, gap in enumerate(case["top2_gaps"]) if gap < NEAR_TIE]
        sure = near[0] if near else NUM_TOKENS
        assert list(output.outputs[0].token_ids[:sure]) == case["greedy_token_ids"][:sure], case["prompt"]
    assert sum(min(case["top2_gaps"]) >= NEAR_TIE for case in GREEDY) >= len(GREEDY) // 2, "too few are compared whole"


def test_greedy_tokens_and_their_gaps_without_an_engine() -> None:
    model = Model.load(checkpoint_path())
    sequences = [torch.tensor(case["prompt_token_ids"] + case["greedy_token_ids"][:-1]) for case in GREEDY]
    for case, logits in zip(GREEDY, model.forward_sequences(sequences), strict=True):
        best = logits[len(case["prompt_token_ids"]) - 1 :].topk(2, dim=1)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        assert gaps == pytest.approx(case["top2_gaps"], abs=1e-4), case["prompt"]
        is_sure = [gap >= NEAR_TIE for gap in gaps]
        pairs = zip(best.indices[:, 0].tolist(), case["greedy_token_ids"], is_sure, strict=True)
        assert all(found == recorded for found, recorded, sure in pairs if sure), case["prompt"]


def test_drafts_at_temperature_1() -> None:
    _, told = serve_recorded(1.0)
    check_drafts(told, 1.0)
