"""Random distributions over a vocabulary."""

import torch
from torch import Tensor

from thalweg.kernels.reference.vocabulary_rows import log_softmax


def random_logprobs(*shape: int, seed: int = 0, scale: float = 2.0, filtered: float = 0.0) -> Tensor:
    """Distributions over the last axis, a share of whose entries is filtered."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, generator=generator)
    is_filtered = torch.rand(*shape, generator=generator) < filtered
    is_filtered[..., -1] = False
    return log_softmax(logits.masked_fill(is_filtered, -torch.inf).flatten(0, -2)).view(shape)
