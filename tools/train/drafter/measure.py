"""What a drafter is worth: acceptance on held-out text and on the backbone's own, tokens per step, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tools.train.drafter.chain import Judged, walk
from torch import Tensor

from thalweg.dspark import Calibration, ConfidenceRecords, calibrate

NUM_BINS = 15
NGRAM = 4


@dataclass(frozen=True, slots=True)
class Chains:
    """Steps of real chains over continuations; n texts, R steps in all, G places."""

    records: ConfidenceRecords
    tokens_per_step: NDArray[np.float64]
    """[n]"""
    every_anchor: NDArray[np.int64]
    """Drafts accepted at every anchor, whether a chain comes by or not."""
    steps_of_text: NDArray[np.int64]
    """[R] which text a step belongs to."""

    @classmethod
    def of(cls, judged: Judged, num_texts: int) -> Chains:
        """From blocks at all anchors of texts that have equally many."""
        accepted = judged.num_accepted.view(num_texts, -1)
        steps, rates = walk(accepted)
        rows = torch.cat([text * accepted.shape[1] + places for text, places in enumerate(steps)])
        confidences = judged.confidences[rows].double().numpy()
        texts = np.repeat(np.arange(num_texts), [len(places) for places in steps])
        records = ConfidenceRecords(confidences, judged.num_accepted[rows].numpy())
        return cls(records, rates.numpy(), judged.num_accepted.numpy(), texts)

    def figures(self, chosen: NDArray[np.bool_]) -> dict[str, Any]:
        """Tokens per step over some of the texts, bool [n], and conditional acceptance by place."""
        of_step = chosen[self.steps_of_text]
        accepted = self.records.num_accepted[of_step]
        tokens = float((accepted + 1).sum() / of_step.sum())
        return {"texts": int(chosen.sum()), "tokens_per_step": tokens, "acceptance": self._conditional(accepted)}

    def every_anchor_figures(self) -> dict[str, Any]:
        """The same over blocks at every anchor."""
        accepted = self.every_anchor
        return {"tokens_per_step": float(accepted.mean() + 1), "acceptance": self._conditional(accepted)}

    def _conditional(self, accepted: NDArray[np.int64]) -> list[float]:
        """Share of the drafts that hold among those behind drafts that hold."""
        return [float((accepted > j).sum() / max((accepted >= j).sum(), 1)) for j in range(self.records.draft_length)]


def overlap_figures(judged: Judged) -> dict[str, Any]:
    """By place, behind the true text: mean 1 - TV, mean confidence, and the calibration error of one for the other."""
    return {
        "acceptance": judged.overlap.mean(0).tolist(),
        "confidence": judged.sureness.mean(0).tolist(),
        "calibration_error": calibration_errors(judged.sureness, judged.overlap),
    }


def calibration_errors(predicted: Tensor, observed: Tensor) -> list[float]:
    """[G]: distance of predictions and observations, [N, G] each, in bins of predictions that weigh what they hold."""
    bins = (predicted * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    errors = []
    for place in range(predicted.shape[1]):
        gaps = (predicted[:, place] - observed[:, place]).double()
        sums = torch.zeros(NUM_BINS, dtype=torch.float64).index_add(0, bins[:, place], gaps)
        errors.append(float(sums.abs().sum() / len(gaps)))
    return errors


def repetition(texts: Tensor) -> NDArray[np.float64]:
    """[n] share of distinct 4-grams in texts int64 [n, L]: the smaller, the more repetitive."""
    grams = texts.unfold(1, NGRAM, 1)
    return np.array([len({tuple(gram) for gram in rows.tolist()}) / grams.shape[1] for rows in grams])


def least_repetitive(texts: Tensor) -> NDArray[np.bool_]:
    """[n] whether a text belongs to the third with the most distinct 4-grams."""
    share = repetition(texts)
    chosen = np.zeros(len(share), dtype=bool)
    chosen[np.argsort(-share, kind="stable")[: max(1, len(share) // 3)]] = True
    return chosen


def calibration_figures(records: ConfidenceRecords, temperatures: Sequence[float]) -> dict[str, Any]:
    """By place: calibration error of survival, the product of confidences, as recorded and with temperatures."""
    before = calibrate(records)
    scaled = calibrate(scaled_records(records, temperatures))
    return {"temperatures": list(temperatures), "before": _errors(before), "after": _errors(scaled)}


def scaled_records(records: ConfidenceRecords, temperatures: Sequence[float]) -> ConfidenceRecords:
    """The records as if the confidences had been computed at temperatures."""
    within = records.confidences.clip(1e-7, 1 - 1e-7)
    logits = np.log(within / (1 - within)) / np.asarray(temperatures)
    return ConfidenceRecords(1 / (1 + np.exp(-logits)), records.num_accepted)


def _errors(calibration: Calibration) -> list[float]:
    return [position.before.reliability.error for position in calibration.positions if position.before is not None]
