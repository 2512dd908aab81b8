"""What a scheduler can be told: deployment options (`SchedulerConfig`) and the sizes of one instance (`Sizes`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from thalweg.interfaces import ConfigError, shown

Policy = Literal["default", "reference"]
EngineType = Literal["normal", "prompt", "completion"]

WATERMARK = 0.9
"""Fraction of the block pool above which no new request starts a prefill; the null block 0 counts as used."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Options of a scheduler. A bad value raises ConfigError naming the field, what it is and what it may be."""

    max_num_seqs: int = 256
    """Most sequences that decode at once."""
    max_num_batched_tokens: int | None = None
    """Most query tokens of one step. None: max(max_model_len, 4096, max_num_seqs * (1 + draft length))."""
    max_model_len: int = 4096
    """Longest sequence, prompt and output together."""
    chunked_prefill: bool = False
    """Spread a prompt that does not fit the token budget over several steps."""
    stop_preempted_request: bool = True
    """End a preempted request instead of recomputing it. Structured requests always end."""
    prefill_max_sum_seqlen_k: int = 1 << 30
    """Most prompt tokens, counted in full length, that one prefill step may touch."""
    lookahead_tokens: int = 0
    """Shortest chunk worth a prefill step; the last chunk of a prompt may be shorter under policy "default"."""
    prefill_interval_all: int = 70
    """Decode steps between two votes that start a prefill when every rank wants one."""
    prefill_interval_any: int = 100
    """Decode steps between two votes that start a prefill when some rank wants one."""
    prefill_interval_continue: int = 10
    """The same while some rank holds a half-prefilled prompt (policy "default")."""
    policy: Policy = "default"
    """`reference` keeps the rules of the traced system, known defects included; it exists to replay its traces."""
    async_scheduling: bool = False
    """Plan a decode step before the result of the one before it is known. Prefill steps are finished in place."""
    engine_type: EngineType = "normal"
    """`prompt` only prefills and hands completed prompts over; `completion` only decodes what was loaded."""

    def __post_init__(self) -> None:
        for field in (
            "max_num_seqs",
            "max_model_len",
            "prefill_max_sum_seqlen_k",
            "prefill_interval_all",
            "prefill_interval_any",
            "prefill_interval_continue",
        ):
            _require_int(field, getattr(self, field), at_least=1)
        _require_int("lookahead_tokens", self.lookahead_tokens, at_least=0)
        if self.max_num_batched_tokens is not None:
            _require_int("max_num_batched_tokens", self.max_num_batched_tokens, at_least=1)
        for field in ("chunked_prefill", "stop_preempted_request", "async_scheduling"):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise ConfigError(f"{field} is {shown(value)}; it must be True or False")
        _require_choice("policy", self.policy, get_args(Policy))
        _require_choice("engine_type", self.engine_type, get_args(EngineType))
        if self.engine_type == "completion" and not self.stop_preempted_request:
            raise ConfigError(
                'stop_preempted_request is False; with engine_type "completion" it must be True, '
                "because such an engine cannot recompute"
            )

    @property
    def plans_ahead(self) -> bool:
        """A step may be planned while another one is unprocessed; an engine that only prefills never does that."""
        return self.async_scheduling and self.engine_type != "prompt"

    def runtime_length(self, draft_length: int) -> int:
        """Positions that every buffer indexed by position needs.

        A step reaches draft_length past the longest sequence, the drafter as far again, and planning ahead assumes
        that the step in flight keeps all of its 1 + draft_length tokens.
        """
        in_flight = draft_length + 1 if self.plans_ahead else 0
        return self.max_model_len + draft_length + in_flight + draft_length


@dataclass(frozen=True, slots=True)
class Sizes:
    """The resolved sizes of one scheduler; both cores are built from the same checked values."""

    num_blocks: int
    """Cache blocks, the null block 0 included."""
    num_state_slots: int
    """State slots, the null slot 0 included."""
    block_size: int
    """Tokens per block."""
    draft_length: int
    """Draft tokens per decode row; 0 = no speculation."""
    tail_length: int
    """Tokens of look-back in a plan, the current one included."""
    vocab_size: int
    context_parallel_size: int
    max_num_batched_tokens: int
    """The option of that name with its default filled in."""

    @property
    def chunk_alignment(self) -> int:
        """Chunks are charged in multiples of this: two mirrored pieces per context-parallel rank."""
        return 2 * self.context_parallel_size if self.context_parallel_size > 1 else 1

    @classmethod
    def resolve(
        cls,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        num_state_slots: int,
        block_size: int,
        draft_length: int = 0,
        tail_length: int = 1,
        vocab_size: int,
        context_parallel_size: int = 1,
    ) -> Sizes:
        """Check the sizes against the config and fill in the token budget. Raises ConfigError."""
        _require_int("num_blocks", num_blocks, at_least=2)
        _require_int("num_state_slots", num_state_slots, at_least=2)
        _require_int("block_size", block_size, at_least=1)
        _require_int("draft_length", draft_length, at_least=0)
        _require_int("tail_length", tail_length, at_least=1)
        _require_int("vocab_size", vocab_size, at_least=1)
        _require_int("context_parallel_size", context_parallel_size, at_least=1)
        if draft_length + 1 > block_size:
            raise ConfigError(
                f"draft_length is {draft_length}; with block_size {block_size} it must be at most {block_size - 1}, "
                "because a sequence grows by at most one block per step"
            )
        if config.engine_type == "completion" and context_parallel_size > 1:
            raise ConfigError(
                f'context_parallel_size is {context_parallel_size}; with engine_type "completion" it must be 1'
            )
        budget = config.max_num_batched_tokens
        decode_tokens = config.max_num_seqs * (1 + draft_length)
        if budget is None:
            budget = max(config.max_model_len, 4096, decode_tokens, block_size)
        sizes = cls(
            num_blocks=num_blocks,
            num_state_slots=num_state_slots,
            block_size=block_size,
            draft_length=draft_length,
            tail_length=tail_length,
            vocab_size=vocab_size,
            context_parallel_size=context_parallel_size,
            max_num_batched_tokens=budget,
        )
        sizes._check_budget(config, decode_tokens)
        return sizes

    def _aligned(self, num_tokens: int) -> int:
        return -(-num_tokens // self.chunk_alignment) * self.chunk_alignment

    def _check_budget(self, config: SchedulerConfig, decode_tokens: int) -> None:
        budget = self.max_num_batched_tokens
        floors = {
            "max_num_seqs * (1 + draft_length)": decode_tokens,
            "block_size": self.block_size,
            "2 * context_parallel_size": self.chunk_alignment,
            "lookahead_tokens, rounded up to the alignment": self._aligned(config.lookahead_tokens),
        }
        # The traced system refuses this too, but its own traces were recorded below that check.
        if not config.chunked_prefill and config.policy == "default":
            floors["max_model_len, as chunked_prefill is off"] = config.max_model_len
        for name, least in floors.items():
            if budget < least:
                raise ConfigError(f"max_num_batched_tokens is {budget}; it must be at least {least} ({name})")
        longest = config.max_model_len if config.chunked_prefill else min(config.max_model_len, budget)
        if config.prefill_max_sum_seqlen_k < longest:
            raise ConfigError(
                f"prefill_max_sum_seqlen_k is {config.prefill_max_sum_seqlen_k}; it must be at least {longest}, "
                "the longest prompt, or that prompt could never start"
            )


def _require_int(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value < 1 << 31:
        raise ConfigError(f"{name} is {shown(value)}; it must be an integer from {at_least} to {(1 << 31) - 1}")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        accepted = ", ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"{name} is {shown(value)}; it must be one of {accepted}")
