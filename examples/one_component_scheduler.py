"""Use the scheduler alone, around any model: here a toy that counts upwards. Needs numpy, not torch.

Install with `pip install thalweg-scheduler`.
"""

import numpy as np

from thalweg.interfaces import SequenceStatus, StepKind, StepPlan, StepResult
from thalweg.scheduler import Scheduler, SchedulerConfig
from thalweg.scheduler.vote import plan_step

EOS = 100


def toy_model(plan: StepPlan) -> StepResult:
    """Answer the last token plus one, for every row. A real model would read block tables and state slots here."""
    if plan.kind is StepKind.PREFILL:
        last_rows = np.cumsum(plan.query_lengths) - 1
        last_tokens = plan.token_ids[last_rows]
    else:
        last_tokens = plan.tail_token_ids[:, -1]
    num_rows = len(plan.sequence_ids)
    return StepResult(
        step=plan.step,
        sampled_token_ids=(last_tokens + 1).astype(np.int32),
        accepted_token_ids=np.empty((num_rows, 0), np.int32),
        draft_token_ids=np.empty((num_rows, 0), np.int32),
        confidences=np.empty((num_rows, 0), np.float32),
        row_status=None,
    )


def main() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=512, chunked_prefill=True, max_num_batched_tokens=128)
    scheduler = Scheduler(config, num_blocks=16, num_state_slots=4, block_size=128, vocab_size=128)
    outputs: dict[int, list[int]] = {}
    for prompt in ([1, 2, 3], list(range(90)) * 2, [97, 98]):
        sequence_id = scheduler.add(np.array(prompt, np.int32), max_tokens=8, eos_token_id=EOS)
        outputs[sequence_id] = []

    while scheduler.has_unfinished:
        plan = plan_step(scheduler)
        outcome = scheduler.process(toy_model(plan))
        scheduler.release(plan.step)
        print(f"step {plan.step:2} {plan.kind.name.lower():7} rows {plan.sequence_ids} queries {plan.query_lengths}")
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            begin, end = outcome.token_offsets[row : row + 2]
            outputs[sequence_id] += outcome.token_ids[begin:end].tolist()
            if outcome.finish_reasons[row]:
                reason = SequenceStatus(outcome.finish_reasons[row]).name
                print(f"        sequence {sequence_id} ended ({reason}): {outputs[sequence_id]}")


if __name__ == "__main__":
    main()
