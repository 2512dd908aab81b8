"""A scripted sampler: it knows in advance every token of every request and how many drafts each round accepts."""

from dataclasses import dataclass, field

import numpy as np

from thalweg.interfaces import StepCorrection, StepKind, StepPlan, StepResult

EOS = 1


@dataclass
class Script:
    """What one request will produce."""

    eos_at: int | None = None
    """Output index, counted from 1, of the EOS token."""
    accept: list[int] = field(default_factory=lambda: [0])
    """Drafts accepted in each decode round, repeated for ever; capped at the number of drafts verified."""
    fails_at: int | None = None
    """Output length at which the grammar gives up."""
    confidence: float | list[float] | None = None
    """Of every draft, or of each of them; the same in every round. None = unknown."""
    num_rounds: int = 0

    def token(self, output_index: int) -> int:
        return EOS if output_index + 1 == self.eos_at else 100 + output_index % 100


def sample(
    plan: StepPlan, scripts: dict[int, Script], draft_length: int, correction: StepCorrection | None = None
) -> StepResult:
    """The result of a plan, from nothing but its arrays (as corrected) and the scripts by sequence id."""
    num_rows = len(plan.sequence_ids)
    is_decode = plan.kind == StepKind.DECODE
    lengths = correction if correction is not None else plan
    width = draft_length if is_decode else 0
    sampled = np.zeros(num_rows, np.int32)
    accepted = np.full((num_rows, width), -1, np.int32)
    drafts = np.full((num_rows, width), 7, np.int32)
    confidences = np.zeros((num_rows, width), np.float32)
    status = np.zeros(num_rows, np.int8)
    for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
        script = scripts[sequence_id]
        num_output = int(lengths.committed_lengths[row] - plan.prompt_lengths[row])
        count = 0
        if is_decode:
            count = min(script.accept[script.num_rounds % len(script.accept)], int(lengths.query_lengths[row]) - 1)
            script.num_rounds += 1
        accepted[row, :count] = [script.token(num_output + index) for index in range(count)]
        sampled[row] = script.token(num_output + count)
        if is_decode and script.confidence is not None:
            confidences[row] = script.confidence
        if script.fails_at is not None and num_output >= script.fails_at:
            status[row] = -1
    knows_confidences = any(script.confidence is not None for script in scripts.values())
    has_grammar = any(script.fails_at is not None for script in scripts.values())
    return StepResult(
        step=plan.step,
        sampled_token_ids=sampled,
        accepted_token_ids=accepted,
        draft_token_ids=drafts,
        confidences=confidences if knows_confidences else confidences[:, :0],
        row_status=status if has_grammar else None,
    )
