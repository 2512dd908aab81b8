"""A drafter that knows what will be said, and errs on purpose: within the grammar and outside of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.interfaces import DraftRows, DraftSampler, Matcher, TargetRows


@dataclass(frozen=True, slots=True)
class Known:
    """What a sequence will say, and its matcher at the beginning; None = free text."""

    num_prompt_tokens: int
    output_ids: Sequence[int]
    matcher: Matcher | None


@dataclass
class GrammarDrafter:
    """Satisfies `thalweg.interfaces.Drafter`. Its drafts depend on sequence and place alone.

    Of every round 0 to `draft_length` drafts are what will be said; the next one is legal but something else, and
    others that are legal follow it; or it is illegal, or no token at all. After the end of what is known come end
    tokens and anything else. texts: by sequence id. is_right: every draft is what will be said.
    """

    draft_length: int
    vocab_size: int
    texts: dict[int, Known]
    seed: int = 0
    is_right: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    """Drafts by kind."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return ()

    def observe(self, rows: TargetRows) -> None:
        """It knows what will be said."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        drafts = np.empty((rows.sequence_ids.size, self.draft_length), np.int32)
        for row, (sequence, anchor) in enumerate(zip(rows.sequence_ids.tolist(), rows.positions.tolist(), strict=True)):
            known = self.texts.get(sequence)
            if known is None:
                drafts[row] = self._random(sequence, anchor).integers(0, self.vocab_size, self.draft_length)
            else:
                drafts[row] = self._round(known, 1 + anchor - known.num_prompt_tokens, self._random(sequence, anchor))
        confidences = np.random.default_rng(rows.positions.tolist()).random(drafts.shape, np.float32)
        return torch.from_numpy(drafts), torch.from_numpy(confidences)

    def _random(self, sequence: int, anchor: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, sequence, anchor))

    def _round(self, known: Known, index: int, random: np.random.Generator) -> list[int]:
        """Drafts from output index `index` on."""
        num_right = self.draft_length if self.is_right else int(random.integers(self.draft_length + 1))
        drafts = list(known.output_ids[index : index + num_right])
        self.seen["right"] += len(drafts)
        matcher = None if known.matcher is None else known.matcher.fresh()
        if matcher is not None:
            assert all(matcher.accept(token) for token in (*known.output_ids[:index], *drafts))
        stays_legal = random.random() < 0.5
        while len(drafts) < self.draft_length:
            drafts.append(self._wrong(matcher, stays_legal, random))
        return drafts

    def _wrong(self, matcher: Matcher | None, stays_legal: bool, random: np.random.Generator) -> int:
        if matcher is None or not matcher.is_constrained:
            self.seen["free"] += 1
            return int(random.integers(self.vocab_size))
        is_allowed = allowed(matcher, self.vocab_size)
        if stays_legal:
            self.seen["legal"] += 1
            token = int(random.choice(np.flatnonzero(is_allowed)))
            assert matcher.accept(token)
            return token
        self.seen["illegal"] += 1
        nothing = [-1, self.vocab_size, 2**31 - 1]
        return int(random.choice([*np.flatnonzero(~is_allowed), *nothing]))


def allowed(matcher: Matcher, vocab_size: int) -> NDArray[np.bool_]:
    """[vocab_size] the tokens that may come next."""
    mask = np.zeros((1, -(-vocab_size // 32)), np.int32)
    matcher.fill_bitmask(mask, 0)
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size].astype(np.bool_)
