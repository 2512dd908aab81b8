"""Whole texts of a model that is two tables of logits: prefill, verify, draft, stop, as recorded."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from thalweg.kernels import bind
from thalweg.kernels.testing import RecordLoader, VectorLoader

ROW_STRIDE = 10000019
DRAFT_SEED = 1000000007
ops = bind("cpu", batch_invariant=True)


class TableRun:
    """One request; the logits after a token are that token's row of a table."""

    def __init__(self, tables: dict[str, Tensor], run: dict[str, Any], eos: int, pad: int) -> None:
        self.target, self.drafter = tables["target"], tables["draft"]
        self.request, self.draft_length = run["request"], run["nextn"]
        self.lengths = itertools.cycle(run["q_plan"] or [self.draft_length + 1])
        self.is_greedy = self.request["temperature"] == 0
        self.eos = None if self.request["ignore_eos"] else eos
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.steps: list[dict[str, Any]] = []
        # One draft slot, whose drafts are certain until the first are drawn.
        self.pool = torch.zeros(2, max(self.draft_length, 1), self.target.shape[0])
        self.is_certain = torch.ones(self.pool.shape[:2], dtype=torch.bool)
        self.drafts = [pad] * self.draft_length

    @property
    def is_finished(self) -> bool:
        return len(self.tokens) >= self.request["max_tokens"] or (bool(self.tokens) and self.tokens[-1] == self.eos)

    def seeds(self, count: int, offset: int = 0) -> Tensor:
        return torch.from_numpy(np.full(count, int(self.request["seed"]) + offset & 2**64 - 1, dtype=np.uint64))

    def filters(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        request = self.request
        return (
            torch.full((count,), request["temperature"]),
            torch.full((count,), request["top_p"]),
            torch.full((count,), request["top_k"]),
            torch.zeros(count),
        )

    def prefill(self) -> None:
        logits = self.target[self.request["last_prompt_token"]][None]
        position = torch.tensor([self.request["prompt_len"]])
        token = ops.sample_tokens(logits, *self.filters(1), self.seeds(1), position)
        self.emit(token, ops.filtered_logprobs(logits, *self.filters(1)))

    def decode(self) -> None:
        length = next(self.lengths)
        start = self.request["prompt_len"] + len(self.tokens) - 1
        token_ids = torch.tensor([self.tokens[-1], *self.drafts[: length - 1]], dtype=torch.int32)
        logits = self.target[token_ids.long()]
        logprobs = ops.filtered_logprobs(logits, *self.filters(length))
        shape = torch.tensor([length]), torch.zeros(length, dtype=torch.bool)
        best = ops.argmax_lowest(logits)
        if self.is_greedy:
            verified = ops.match_drafts(best, token_ids, *shape, self.draft_length)
        else:
            verified = ops.verify_drafts(
                best,
                token_ids,
                *shape,
                logprobs,
                self.seeds(length),
                start + 1 + ROW_STRIDE * torch.arange(length),
                self.pool,
                torch.tensor([1]),
                is_certain=self.is_certain,
            )
        num_accepted = int(verified.num_accepted)
        emitted = self.emit(verified.token_ids[: num_accepted + 1], logprobs)
        self.steps.append(
            {
                "q": length,
                "drafts": self.drafts,
                "accepted": num_accepted,
                "emitted": emitted,
                "start_position": start,
            }
        )
        self.propose(int(verified.token_ids[num_accepted]), start + num_accepted + 2)

    def propose(self, anchor: int, first_position: int) -> None:
        """Draw drafts at the index of the token that each stands for, the recording's rule."""
        token = torch.tensor([anchor])
        self.drafts = []
        for place in range(self.draft_length):
            logits = self.drafter[token.long()]
            position = torch.tensor([first_position + place])
            token = ops.sample_tokens(logits, *self.filters(1), self.seeds(1, DRAFT_SEED), position)
            ops.store_draft_rows(
                self.pool[:, place], torch.tensor([1]), ops.filtered_logprobs(logits, *self.filters(1))
            )
            self.drafts.append(int(token))
        self.is_certain[1] = False

    def emit(self, token_ids: Tensor, logprobs: Tensor) -> int:
        """Append tokens until the request ends; how many those were."""
        of_tokens = ops.token_logprobs(logprobs[: token_ids.shape[0]], token_ids)
        for count, (token, logprob) in enumerate(zip(token_ids.tolist(), of_tokens.tolist(), strict=True), 1):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            if self.is_finished:
                return count
        return token_ids.shape[0]


@pytest.mark.parametrize("number", range(34))
def test_a_recorded_text_is_reproduced_step_by_step(number: int, vectors: VectorLoader, recorded: RecordLoader) -> None:
    runs = recorded("sampling/toy_lm_runs")
    assert len(runs["cases"]) == 34
    case = runs["cases"][number]
    run = TableRun(vectors("sampling/toy_lm_tables"), case, runs["eos"], runs["pad_token"])
    run.prefill()
    while not run.is_finished:
        run.decode()
    assert run.tokens == case["tokens"]
    assert run.steps == case["steps"]
    assert run.logprobs == pytest.approx(case["token_logprobs"], abs=1e-5)
