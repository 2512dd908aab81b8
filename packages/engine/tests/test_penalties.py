"""Penalties with drafts, steps in flight and preemptions equal those of one token after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.bench import VOCAB, Bench, MakeBench, params

from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import DraftRows, DraftSampler

LIKELY = 14
"""So many tokens have the say, so that they come again and again."""
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 0.4},
    {"temperature": 1.0, "repetition_penalty": 0.8, "frequency_penalty": -0.3},
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.5},
    {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.3},
]
"""More requests than places in a batch, so that slots change hands."""
PROMPTS = [[3, 5, 5], [7], [4, 4, 9, 3], [6, 8], [10], [3, 4, 5]]
LENGTH = 26


def make_table() -> torch.Tensor:
    """float32 [V, V] logits after every token; none of the likely ones ends the text."""
    logits = 2 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(8))
    logits[:, :3] -= 50
    logits[:, 3 + LIKELY :] -= 50
    return logits


TABLE = make_table()


def greedy_text(prompt: list[int], options: dict[str, Any], length: int) -> list[int]:
    """What the formula says, token by token in float32."""
    one, text = np.float32(1), list(prompt)
    repetition = np.float32(options.get("repetition_penalty", 1))
    for _ in range(length):
        logits = TABLE[text[-1]].numpy().copy()
        seen = np.bincount(text, minlength=VOCAB) > 0
        counts = np.bincount(text[len(prompt) :], minlength=VOCAB).astype(np.float32)
        logits = np.where(seen, np.where(logits > 0, logits / repetition, logits * repetition), logits)
        logits -= np.float32(options.get("frequency_penalty", 0)) * counts
        logits -= np.float32(options.get("presence_penalty", 0)) * (one * (counts > 0))
        text.append(int(logits.argmax()))
    return text[len(prompt) :]


class Prompter:
    """A drafter that was told the texts, and is wrong where `is_wrong(sequence id, position)` says so."""

    def __init__(self, texts: list[list[int]], draft_length: int, luck: str) -> None:
        self._texts = texts
        self._draft_length = draft_length
        self._luck = luck

    def is_wrong(self, sequence: int, position: int) -> bool:
        return {"right": False, "wrong": True, "mixed": (7 * sequence + 5 * position) % 4 == 0}[self._luck]

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        drafts = torch.empty((rows.sequence_ids.size, self._draft_length), dtype=torch.int32)
        for row, (sequence, position) in enumerate(
            zip(rows.sequence_ids.tolist(), rows.positions.tolist(), strict=True)
        ):
            for place in range(self._draft_length):
                index = position + 1 + place
                text = self._texts[sequence]
                right = text[index] if index < len(text) else 3
                drafts[row, place] = 3 + (right - 2) % LIKELY if self.is_wrong(sequence, index) else right
        return drafts, torch.full(drafts.shape, 0.5)


def serve(bench: Bench, drafter: Prompter | None = None) -> tuple[list[list[int]], int]:
    """(texts, number of preemptions)"""
    bench.model.logits = lambda hidden: TABLE[hidden.long()]  # type: ignore[method-assign]
    if drafter is not None:
        assert bench.drafter is not None
        bench.drafter.propose = drafter.propose  # type: ignore[method-assign]
    for index, (prompt, options) in enumerate(zip(PROMPTS, OPTIONS, strict=True)):
        bench.engine.add_request(str(index), prompt, params(seed=index, max_tokens=LENGTH, ignore_eos=True, **options))
    finals = [output for _, output in sorted(bench.drain().items())]
    assert [final.error for final in finals] == [None] * len(PROMPTS)
    texts = [list(final.outputs[0].token_ids) for final in finals]
    return texts, sum(final.metrics.num_preemptions for final in finals)


@pytest.fixture(scope="module")
def expected(tokenizer: Tokenizer) -> list[list[int]]:
    """The texts without drafts, one step after the other."""
    return serve(Bench(tokenizer))[0]


def prompter(texts: list[list[int]], draft_length: int, luck: str) -> Prompter:
    return Prompter([prompt + text for prompt, text in zip(PROMPTS, texts, strict=True)], draft_length, luck)


def test_without_drafts_the_text_is_what_the_formula_says(make_bench: MakeBench, expected: list[list[int]]) -> None:
    texts, _ = serve(make_bench())
    assert texts == expected
    num_changed = 0
    for prompt, options, text in zip(PROMPTS, OPTIONS, texts, strict=True):
        if not options["temperature"]:
            assert text == greedy_text(prompt, options, LENGTH)
            num_changed += text != greedy_text(prompt, {}, LENGTH)
    assert num_changed == 3, "the penalties change nothing"


@pytest.mark.parametrize("draft_length", [1, 5])
@pytest.mark.parametrize("luck", ["right", "wrong", "mixed"])
def test_accepted_drafts_count_as_tokens_do(
    make_bench: MakeBench, expected: list[list[int]], luck: str, draft_length: int
) -> None:
    bench = make_bench(draft_length=draft_length)
    accepted: set[int] = set()
    bench.engine.statistics.on_step(lambda record: accepted.update(record.outcome.num_accepted.tolist()))
    texts, _ = serve(bench, prompter(expected, draft_length, luck))
    assert texts == expected
    assert max(accepted) == {"right": 1 + draft_length, "wrong": 1, "mixed": min(4, 1 + draft_length)}[luck]


@pytest.mark.parametrize("draft_length", [0, 3])
def test_a_preempted_request_counts_what_it_had_said(
    make_bench: MakeBench, expected: list[list[int]], draft_length: int
) -> None:
    bench = make_bench(draft_length=draft_length, num_blocks=11)
    texts, num_preemptions = serve(bench, prompter(expected, draft_length, "mixed") if draft_length else None)
    assert num_preemptions > 0
    assert texts == expected
