"""Rows of sampling: filters, draws, penalties, reports, and sequences with drafts to be verified."""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernels_testing.row_cases import ROWS, Flat, Op, fields, integers, random, rows_of, written
from torch import Tensor

from thalweg.kernels.reference.coupled import coupled_draw
from thalweg.kernels.reference.verification import match_drafts
from thalweg.kernels.testing import RowCall, Rows

ROWS_OF_LOGITS, COUNTS = 33, (1, 2, 3, 17, 32)
SIZES = (64, 9001)
DRAFTS = 3


def logits_of(vocabulary: int, rows: int = ROWS_OF_LOGITS) -> Tensor:
    """float32: ordinary rows, one with equal logits, one with NaN, one with nothing, one with one token."""
    logits = random(rows, vocabulary, dtype=torch.float32, scale=3)
    logits[4] = logits[4].round()
    logits[7, 3], logits[8], logits[9, 1:] = torch.nan, -torch.inf, -torch.inf
    return logits


def filters() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """temperature, top_p, top_k, min_p: all, some and none of them."""
    row = torch.arange(ROWS_OF_LOGITS)
    temperature = torch.tensor([0.0, 0.7, 1.0])[row % 3]
    top_p = torch.tensor([1.0, 0.9, 0.5, 1.0])[row % 4]
    top_k = torch.tensor([-1, 5, 40, -1, -1])[row % 5]
    return temperature, top_p, top_k, torch.tensor([0.0, 0.0, 0.02, 0.3, 0.0, 0.0])[row % 6]


def streams(rows: int = ROWS_OF_LOGITS) -> tuple[Tensor, Tensor]:
    return torch.arange(rows) * 7919 - 3, torch.arange(rows) * 5


def of_logits(*ops: str) -> Callable[[Callable[[int], RowCall]], Callable[[int], RowCall]]:
    def register(make: Callable[[int], RowCall]) -> Callable[[int], RowCall]:
        for op in ops:
            rows_of(op, num_rows=ROWS_OF_LOGITS, counts=COUNTS, vocabulary=SIZES)(make)
        return make

    return register


@of_logits("argmax_lowest", "log_softmax")
def plain(vocabulary: int) -> RowCall:
    logits = logits_of(vocabulary)
    return lambda op, ids: op(logits[ids])


@of_logits("clear_broken_rows")
def clear_broken_rows(vocabulary: int) -> RowCall:
    """Which rows are broken, in a column behind what they have become."""
    logits = logits_of(vocabulary)

    def call(op: Op, ids: Tensor) -> Rows:
        cleared = logits[ids]
        broken = op(cleared)
        return torch.cat((cleared, broken[:, None]), dim=1)

    return call


@of_logits("filter_mask")
def filter_mask(vocabulary: int) -> RowCall:
    logits, (_, *rest) = logits_of(vocabulary), filters()
    return lambda op, ids: op(logits[ids], *(values[ids] for values in rest))


@of_logits("filtered_logprobs")
def filtered_logprobs(vocabulary: int) -> RowCall:
    logits, rest = logits_of(vocabulary), filters()
    return lambda op, ids: op(logits[ids], *(values[ids] for values in rest))


@of_logits("sample_tokens", "coupled_tokens")
def drawn_tokens(vocabulary: int) -> RowCall:
    logits, rest = logits_of(vocabulary), (*filters(), *streams())
    return lambda op, ids: op(logits[ids], *(values[ids] for values in rest))


@of_logits("coupled_draw")
def drawn_from_weights(vocabulary: int) -> RowCall:
    weights, rest = logits_of(vocabulary).nan_to_num(0).softmax(-1).nan_to_num(0), streams()
    return lambda op, ids: op(weights[ids], *(values[ids] for values in rest))


@of_logits("draw")
def draw(vocabulary: int) -> RowCall:
    weights, u = logits_of(vocabulary).exp(), random(ROWS_OF_LOGITS, 1)[:, 0].abs() % 1
    return lambda op, ids: op(weights[ids], u[ids])


@of_logits("keep_largest")
def keep_largest(vocabulary: int) -> RowCall:
    logits = logits_of(vocabulary)
    return lambda op, ids: written(logits[ids], lambda copy: op(copy, 20))


def changes(op_takes_biases: bool) -> RowCall:
    """Three changed tokens per row, for two rows of three."""
    logits, biases = logits_of(64), random(ROWS_OF_LOGITS, 3, dtype=torch.float32)
    tokens = integers(0, 20, ROWS_OF_LOGITS, 3) + 20 * torch.arange(3)

    def call(op: Op, ids: Tensor) -> Rows:
        place = torch.arange(ids.shape[0], device=ids.device)[ids % 3 > 0]
        chosen = ids[ids % 3 > 0]
        given = [place.repeat_interleave(3), tokens[chosen].flatten()]
        if op_takes_biases:
            given.append(biases[chosen].flatten())
        return written(logits[ids], lambda copy: op(copy, *given))

    return call


for name in ("add_biases", "forbid_tokens"):
    rows_of(name, num_rows=ROWS_OF_LOGITS, op_takes_biases=[name == "add_biases"])(changes)


def tables(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Output counts int32 and prompt marks bool of slots 1 to ROWS_OF_LOGITS; slot 0 is nobody's."""
    counts = integers(-3, 4, 1 + ROWS_OF_LOGITS, vocabulary).clamp(min=0).int()
    marks = integers(0, 4, 1 + ROWS_OF_LOGITS, vocabulary, seed=1) == 0
    counts[0], marks[0] = 0, False
    return counts, marks


@of_logits("apply_penalties")
def apply_penalties(vocabulary: int) -> RowCall:
    logits, (counts, marks) = logits_of(vocabulary), tables(vocabulary)
    step_ids = integers(-2, vocabulary, ROWS_OF_LOGITS, DRAFTS)
    step_ids[5] = 11
    repetition, presence, frequency = random(3, ROWS_OF_LOGITS, dtype=torch.float32)
    rest = step_ids, repetition.abs() + 0.1, presence, frequency

    def call(op: Op, ids: Tensor) -> Rows:
        return written(logits[ids], lambda copy: op(copy, counts, marks, 1 + ids, *(values[ids] for values in rest)))

    return call


@rows_of("count_tokens", num_rows=ROWS_OF_LOGITS)
def count_tokens() -> RowCall:
    """A row that is there twice counts twice, so each is given once."""
    counts, token_ids = tables(64)[0], integers(-2, 66, ROWS_OF_LOGITS, 4)

    def call(op: Op, ids: Tensor) -> Rows:
        given = ids.unique()
        return written(counts, lambda copy: op(copy, 1 + given, token_ids[given]))[1 + ids]

    return call


@rows_of("reset_token_counts", num_rows=ROWS_OF_LOGITS)
def reset_token_counts() -> RowCall:
    """Prompts of 1 to 9 tokens and outputs of 1 to 5."""
    counts, marks = tables(64)
    prompts, outputs = Flat(integers(1, 10, ROWS_OF_LOGITS), 9), Flat(integers(1, 6, ROWS_OF_LOGITS), 5)
    prompt_ids, output_ids = integers(-1, 64, ROWS_OF_LOGITS, 9), integers(-1, 64, ROWS_OF_LOGITS, 5, seed=1)

    def call(op: Op, ids: Tensor) -> Rows:
        given, new_counts, new_marks = ids.unique(), counts.clone(), marks.clone()
        place = torch.arange(given.shape[0], device=ids.device)
        texts = []
        for flat, tokens in ((prompts, prompt_ids), (outputs, output_ids)):
            texts += [flat.pack(tokens, given), place.repeat_interleave(flat.lengths[given])]
        op(new_counts, new_marks, 1 + given, *texts)
        return new_counts[1 + ids], new_marks[1 + ids]

    return call


@of_logits("token_logprobs", "sum_smaller_probs")
def reports(vocabulary: int) -> RowCall:
    logprobs = random(ROWS_OF_LOGITS, vocabulary, dtype=torch.float32).log_softmax(-1)
    tokens = integers(-1, vocabulary + 1, ROWS_OF_LOGITS)
    return lambda op, ids: op(logprobs[ids], tokens[ids])


@of_logits("top_logprobs")
def top_logprobs(vocabulary: int) -> RowCall:
    logprobs = random(ROWS_OF_LOGITS, vocabulary, dtype=torch.float32).log_softmax(-1)
    logprobs[3] = logprobs[3].round()
    return lambda op, ids: tuple(op(logprobs[ids], 7))


def lists() -> tuple[Tensor, Tensor]:
    """The K ids of each row, all different, and numbers that go with them."""
    ids = torch.stack([torch.arange(20).roll(3 * row)[:6] for row in range(ROWS)]).int()
    return ids, random(ROWS, 6, dtype=torch.float32)


@rows_of("lookup_by_key")
def lookup_by_key() -> RowCall:
    keys, values = lists()
    wanted = integers(0, 20, ROWS)
    return lambda op, ids: op(keys[ids], values[ids], wanted[ids])


@rows_of("align_draft_topk")
def align_draft_topk() -> RowCall:
    keys, values = lists()
    drafts, others = integers(0, 20, ROWS), keys.roll(1, 0)
    return lambda op, ids: tuple(op(keys, values, drafts, others[ids], ids))


@of_logits("judge_drafts")
def judge_drafts(vocabulary: int) -> RowCall:
    """Rows with a draft that was drawn, with one that is certain, and without one."""
    target, drafter = (
        random(ROWS_OF_LOGITS, vocabulary, dtype=torch.float32, seed=seed).log_softmax(-1) for seed in range(2)
    )
    drafts = coupled_draw(drafter.exp(), *streams())
    row = torch.arange(ROWS_OF_LOGITS)
    has_draft, draft_rows = row % 4 < 3, torch.where(row % 5 > 0, row, -1)
    seeds, positions = streams()

    def call(op: Op, ids: Tensor) -> Rows:
        given = (target[ids], drafts[ids], has_draft[ids], drafter, draft_rows[ids], seeds[ids], positions[ids])
        return fields(op(*given))

    return call


class Step:
    """Sequences of 1 to 4 rows: tokens int [ROWS, 4], what the target drew int32, broken rows bool."""

    def __init__(self) -> None:
        self.flat = Flat(integers(1, 2 + DRAFTS, ROWS), 1 + DRAFTS)
        self.tokens = integers(0, 3, ROWS, 1 + DRAFTS)
        self.drawn = integers(0, 3, ROWS, 1 + DRAFTS, seed=1).int()
        self.broken = integers(0, 30, ROWS, 1 + DRAFTS, seed=2) == 0

    def pack(self, ids: Tensor, *values: Tensor) -> list[Tensor]:
        return [self.flat.pack(value, ids) for value in values]

    def spread(self, ids: Tensor, rows: tuple[Tensor, ...], counts: tuple[Tensor, ...]) -> Rows:
        """By sequence. counts: num_accepted, last_rows, accepted_ids; the last row is counted from the first one."""
        lengths = self.flat.lengths[ids]
        num_accepted, last_rows, accepted_ids = counts
        own_last = last_rows - (lengths.cumsum(0) - lengths)
        return (*(self.flat.spread(part, ids) for part in rows), num_accepted, own_last, accepted_ids)


@rows_of("accepted_prefix")
def accepted_prefix() -> RowCall:
    step = Step()

    def call(op: Op, ids: Tensor) -> Rows:
        is_accepted, tokens = step.pack(ids, step.drawn > 0, step.tokens)
        return step.spread(ids, (), op(is_accepted, tokens, step.flat.lengths[ids], DRAFTS))

    return call


@rows_of("match_drafts")
def matching() -> RowCall:
    step = Step()

    def call(op: Op, ids: Tensor) -> Rows:
        drawn, tokens, broken = step.pack(ids, step.drawn, step.tokens, step.broken)
        made = fields(op(drawn, tokens, step.flat.lengths[ids], broken, DRAFTS))
        return step.spread(ids, made[:4], made[4:])

    return call


@rows_of("force_tokens")
def force_tokens() -> RowCall:
    step, forced = Step(), integers(-3, 3, ROWS, 1 + DRAFTS, seed=3)

    def call(op: Op, ids: Tensor) -> Rows:
        lengths = step.flat.lengths[ids]
        drawn, tokens, broken, wanted = step.pack(ids, step.drawn, step.tokens, step.broken, forced)
        made = fields(op(match_drafts(drawn, tokens, lengths, broken, DRAFTS), wanted, tokens, lengths))
        return step.spread(ids, made[:4], made[4:])

    return call


@rows_of("verify_drafts", vocabulary=(16, 1000))
def verify_drafts(vocabulary: int) -> RowCall:
    """Every fourth sequence is greedy, some drafts are certain; a sequence's slot is its number."""
    step, shape = Step(), (ROWS, 1 + DRAFTS)
    target = random(*shape, vocabulary, dtype=torch.float32).log_softmax(-1)
    pool = random(ROWS, DRAFTS, vocabulary, dtype=torch.float32).log_softmax(-1)
    seeds, positions = torch.arange(ROWS)[:, None].expand(shape) * 31, integers(0, 999, *shape)
    is_certain = integers(0, 4, ROWS, DRAFTS) == 0
    is_drawn = (torch.arange(ROWS) % 4 > 0)[:, None].expand(shape)

    def call(op: Op, ids: Tensor) -> Rows:
        lengths = step.flat.lengths[ids]
        best, tokens, broken, drawn = step.pack(ids, step.drawn, step.tokens, step.broken, is_drawn)
        drawn_rows = drawn.nonzero()[:, 0]
        law = [values[drawn_rows] for values in step.pack(ids, target, seeds, positions)]
        made = fields(op(best, tokens, lengths, broken, *law, pool, ids, is_certain=is_certain, drawn_rows=drawn_rows))
        return step.spread(ids, made[:4], made[4:])

    return call
