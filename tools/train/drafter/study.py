"""Measures an exported checkpoint and fits its confidence temperatures: on prompts that do not meet each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tools.train.backbone.experts import DenseExperts
from tools.train.common.files import load_tokens
from tools.train.drafter.chain import Judged, judge_shelf
from tools.train.drafter.library import Shelf
from tools.train.drafter.material import write_for_measuring
from tools.train.drafter.measure import Chains, calibration_figures, least_repetitive, overlap_figures
from tools.train.drafter.ops import DraftOps
from tools.train.drafter.target import Target
from tools.train.evaluate.models import OnDevice, Subject
from torch import Tensor

from thalweg.dspark import calibrate, write_calibration
from thalweg.model import DraftNetwork, Model, Numerics
from thalweg.model.drafter.source import draft_tensors
from thalweg.model.weights import Weights

PROMPT_LENGTH = 96
CONTINUATION = 160
TEMPERATURE_FILES = {True: "temperatures-greedy.json", False: "temperatures-sampled.json"}
"""By whether drafting is greedy."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is measured."""

    prompts: int = 96
    prompts_to_fit: int = 288
    windows: int = 64
    """Of held-out text."""
    stride: int = 4
    """Of anchors in them."""


class Study:
    """A checkpoint with a drafter, on one device."""

    def __init__(
        self,
        checkpoint: Path,
        data: Path,
        device: torch.device,
        seed: int,
        amounts: Amounts | None = None,
    ) -> None:
        """data: folder of held_out.npy and evaluation.npy, or their .xz."""
        self._amounts = Amounts() if amounts is None else amounts
        self._random = np.random.default_rng(seed)
        self._draw = torch.Generator(device).manual_seed(seed)
        subject = Subject.open(checkpoint, device)
        torch.manual_seed(seed)
        self._target = Target(subject, subject.config.dspark_target_layer_ids)
        self.model = self._target.model
        self.network = load_network(checkpoint, self.model, device)
        self._data = data
        self._prompts = self._read_prompts(subject.config.bos_token_id)

    def fit(self, out: Path) -> dict[str, Any]:
        """Fit temperatures for greedy drafting and for temperature 1, and write both files."""
        out.mkdir(parents=True, exist_ok=True)
        prompts, found = self._prompts[self._amounts.prompts :], {}
        for greedy, name in TEMPERATURE_FILES.items():
            chains, _ = self._chains(prompts, greedy=greedy)
            fitted = calibrate(chains.records)
            kind = "greedy" if greedy else "at temperature 1"
            write_calibration(out / name, fitted, f"{len(prompts)} held-out prompts, {CONTINUATION} tokens {kind}")
            found[name] = list(fitted.temperatures)
        return found

    def measure(self, temperatures: dict[str, list[float]]) -> dict[str, Any]:
        """Every figure, on other prompts than those of `fit`, with the temperatures that it returned."""
        prompts = self._prompts[: self._amounts.prompts]
        report: dict[str, Any] = {"held_out_text": overlap_figures(self._held_out())}
        for greedy, name in TEMPERATURE_FILES.items():
            chains, (judged, shelf) = self._chains(prompts, greedy=greedy)
            continuation = shelf.token_ids[:, PROMPT_LENGTH : PROMPT_LENGTH + CONTINUATION].cpu()
            part = {
                "chain": chains.figures(np.ones(len(prompts), dtype=bool)),
                "least_repetitive_third": chains.figures(least_repetitive(continuation)),
                "every_anchor": chains.every_anchor_figures(),
                "survival_calibration_error": calibration_figures(chains.records, temperatures[name]),
            }
            if not greedy:
                part["own_samples"] = overlap_figures(judged)
            report["greedy" if greedy else "sampled"] = part
        return report

    def _chains(self, prompts: Tensor, *, greedy: bool) -> tuple[Chains, tuple[Judged, Shelf]]:
        # A step at the last token still needs a block's worth of text to be judged by.
        length = CONTINUATION + self.network.config.dspark_block_size
        shelf = write_for_measuring(self._target, prompts, length, greedy=greedy)
        judged = judge_shelf(self.network, self.model, shelf, self._draw, greedy=greedy)
        return Chains.of(judged, len(prompts)), (judged, shelf)

    def _held_out(self) -> Judged:
        stored = load_tokens(self._data, "evaluation")[: self._amounts.windows]
        windows = torch.from_numpy(stored.astype(np.int64))
        count = len(windows)
        first, is_greedy = torch.ones(count, dtype=torch.int64), torch.zeros(count, dtype=torch.bool)
        shelf = Shelf.read(self._target, windows[:, :-1].contiguous(), first, is_greedy)
        return judge_shelf(self.network, self.model, shelf, self._draw, greedy=False, stride=self._amounts.stride)

    def _read_prompts(self, bos: int) -> Tensor:
        """int64 [n, PROMPT_LENGTH] stretches of held-out text that do not overlap, in random order, each after BOS."""
        stream = load_tokens(self._data, "held_out")
        count, needed = len(stream) // PROMPT_LENGTH, self._amounts.prompts + self._amounts.prompts_to_fit
        stretches = stream[: count * PROMPT_LENGTH].reshape(count, PROMPT_LENGTH).astype(np.int64)
        chosen = torch.from_numpy(stretches[self._random.permutation(count)[:needed]])
        chosen[:, 0] = bos
        return chosen


def load_network(checkpoint: Path, model: Model, device: torch.device) -> DraftNetwork:
    """As `DraftNetwork.load` in plain mode, on a device and for many blocks at once."""
    config, numerics = model.config, Numerics("plain", "float32", DraftOps())
    head = "embed.weight" if config.tie_word_embeddings else "head.weight"
    shared = model.parameters["embed.weight"], model.parameters[head]
    with draft_tensors(checkpoint, config) as source, device:
        return DraftNetwork(config, Weights(OnDevice(source, device), numerics), numerics, *shared, DenseExperts)


def write_report(path: Path, report: dict[str, Any]) -> None:
    """One JSON file of every figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
