"""What a draft block is trained for, small_model.md 7: the target's distribution, and how often it will be accepted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tools.train.common.compiled import Compiled
from tools.train.drafter.blocks import Texts
from torch import Tensor

from thalweg.model import DraftNetwork

CROSS_ENTROPY, TOTAL_VARIATION, CONFIDENCE = 0.5, 1.0, 0.5
DECAY = 4.0
"""Position j weighs exp(-j / DECAY): a draft counts only where all before it were accepted."""
SHARPNESS = 2.0
"""Logits of the target are multiplied with it in greedy texts, where its likeliest token is all that counts."""


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """The loss, and what it says of each position; G positions."""

    total: Tensor
    """float32 []"""
    acceptance: Tensor
    """float32 [G] mean of 1 - TV: the chance that a draft drawn at temperature 1 is accepted after the true text."""
    agreement: Tensor
    """float32 [G] share of rows whose likeliest token is the target's."""
    confidence: Tensor
    """float32 [G] mean."""


def block_loss(
    network: DraftNetwork, rows: Tensor, texts: Texts, anchors: Tensor, target_logits: Tensor, is_greedy: Tensor
) -> BlockLoss:
    """The loss of block rows [N, G, h] at anchors int64 [N], the Markov input being the text's own tokens.

    target_logits: float32 [N * G, V] of the rows from each anchor on. is_greedy: bool [N] anchors in texts that are the
    target's likeliest tokens: there the target is sharpened, and the confidence learns whether the likeliest tokens
    agree, elsewhere 1 - TV.
    """
    size = rows.shape[1]
    before = network.markov_rows(texts.token_ids[texts.following(anchors, size)].flatten())
    flat = rows.flatten(0, 1)
    logits = network.biased(network.base_logits(flat), before)
    confidence = network.confidences(flat, before, 1.0)
    terms = _terms(logits, target_logits, confidence, is_greedy.repeat_interleave(size))
    loss, acceptance, agreement = (term.view(-1, size).mean(0) for term in terms)
    weights = torch.exp(-torch.arange(size, device=rows.device) / DECAY)
    mean_confidence = confidence.detach().view(-1, size).mean(0)
    return BlockLoss((loss * weights).sum() / weights.sum(), acceptance, agreement, mean_confidence)


@Compiled
def _terms(
    logits: Tensor, target_logits: Tensor, confidence: Tensor, is_greedy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, 1 - TV and agreement of every row, float32 [n] each."""
    log_draft = torch.log_softmax(logits, -1)
    target = torch.softmax(torch.where(is_greedy, SHARPNESS, 1.0).unsqueeze(-1) * target_logits, -1)
    cross_entropy = -(target * log_draft).sum(-1)
    variation = 0.5 * (target - log_draft.exp()).abs().sum(-1)
    acceptance = 1 - variation.detach()
    agreement = (logits.detach().argmax(-1) == target_logits.argmax(-1)).float()
    label = torch.where(is_greedy, agreement, acceptance).clamp(0, 1)
    surprise = torch.nn.functional.binary_cross_entropy(confidence, label, reduction="none")
    loss = CROSS_ENTROPY * cross_entropy + TOTAL_VARIATION * variation + CONFIDENCE * surprise
    return loss, acceptance, agreement
