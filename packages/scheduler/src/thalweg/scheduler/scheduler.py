"""The scheduler that engines use: the C++ core, configured by `SchedulerConfig`."""

from __future__ import annotations

from thalweg.scheduler._core import FlopsEstimator, SchedulerCore
from thalweg.scheduler.config import SchedulerConfig, Sizes
from thalweg.scheduler.flops_model import FlopsModel


class Scheduler(SchedulerCore):
    """Continuous batching, synchronous or one decode step ahead of the results.

    Satisfies `thalweg.interfaces.Scheduler`; `thalweg.scheduler.reference.Scheduler` is its twin in plain Python, which
    spells out what the contract leaves open. Planning and processing run without the interpreter lock. The arrays of a
    plan, a correction or an outcome belong to it alone.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        num_state_slots: int,
        block_size: int,
        draft_length: int = 0,
        tail_length: int = 1,
        vocab_size: int,
        context_parallel_size: int = 1,
        flops_model: FlopsModel | None = None,
    ) -> None:
        """Both pool sizes include the null id 0. Raises ConfigError when sizes and config contradict each other.

        flops_model: fills the plan's FLOPs, None = 0.
        """
        sizes = Sizes.resolve(
            config,
            num_blocks=num_blocks,
            num_state_slots=num_state_slots,
            block_size=block_size,
            draft_length=draft_length,
            tail_length=tail_length,
            vocab_size=vocab_size,
            context_parallel_size=context_parallel_size,
        )
        super().__init__(
            num_blocks=sizes.num_blocks,
            num_state_slots=sizes.num_state_slots,
            block_size=sizes.block_size,
            draft_length=sizes.draft_length,
            tail_length=sizes.tail_length,
            vocab_size=sizes.vocab_size,
            chunk_alignment=sizes.chunk_alignment,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            chunked_prefill=config.chunked_prefill,
            stop_preempted_request=config.stop_preempted_request,
            prefill_max_sum_seqlen_k=config.prefill_max_sum_seqlen_k,
            lookahead_tokens=config.lookahead_tokens,
            prefill_interval_all=config.prefill_interval_all,
            prefill_interval_any=config.prefill_interval_any,
            prefill_interval_continue=config.prefill_interval_continue,
            is_reference_policy=config.policy == "reference",
            plans_ahead=config.plans_ahead,
            engine_type=config.engine_type,
            flops=FlopsEstimator(flops_model) if flops_model is not None else None,
        )
