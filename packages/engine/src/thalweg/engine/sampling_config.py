"""The section of the engine configuration that holds for the draws of every request."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.engine.sections import is_int, require_bool
from thalweg.interfaces import ConfigError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """What a deployment decides about sampling. Raises ConfigError naming the option."""

    token_blacklist: tuple[int, ...] = ()
    """Token ids that are never drawn. Drafts may propose them, in vain; log-probabilities of prompts know nothing of
    it."""
    force_top_k: int = 0
    """Restrict every distribution, drafts included, to its so many largest logits before anything else; 0 = off."""
    return_draws: bool = False
    """Report with every output token how it was drawn: `CompletionOutput.draws`."""

    def __post_init__(self) -> None:
        ids = self.token_blacklist
        if not isinstance(ids, tuple) or not all(is_int(token_id) and token_id >= 0 for token_id in ids):
            raise ConfigError(f"token_blacklist is {shown(ids)}; it must be a tuple of token ids >= 0")
        if not is_int(self.force_top_k) or not 0 <= self.force_top_k < 1 << 31:
            raise ConfigError(f"force_top_k is {shown(self.force_top_k)}; it must be an integer from 0 to 2**31-1")
        require_bool("return_draws", self.return_draws)
