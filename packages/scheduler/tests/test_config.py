"""Options and sizes: what is accepted, what is filled in, and what the errors say."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from scheduler_testing.cores import Core, small_config

from thalweg.interfaces import ConfigError
from thalweg.scheduler.config import SchedulerConfig, Sizes

SIZES: dict[str, Any] = {"num_blocks": 65, "num_state_slots": 11, "block_size": 16, "vocab_size": 1000}


def test_the_defaults_are_those_of_a_server() -> None:
    config = SchedulerConfig()
    assert (config.max_num_seqs, config.max_model_len, config.chunked_prefill) == (256, 4096, False)
    assert config.stop_preempted_request
    assert (config.prefill_interval_all, config.prefill_interval_any, config.prefill_interval_continue) == (70, 100, 10)
    assert config.policy == "default"


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SchedulerConfig().max_num_seqs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", 2.0),
        ("max_num_seqs", True),
        ("max_num_seqs", 1 << 31),
        ("max_num_batched_tokens", 0),
        ("max_model_len", -5),
        ("prefill_max_sum_seqlen_k", 0),
        ("lookahead_tokens", -1),
        ("prefill_interval_all", 0),
        ("prefill_interval_any", 0),
        ("prefill_interval_continue", 0),
        ("chunked_prefill", 1),
        ("stop_preempted_request", None),
        ("async_scheduling", 1),
        ("async_scheduling", "yes"),
        ("policy", "fast"),
        ("policy", None),
        ("engine_type", "decode"),
        ("engine_type", 1),
    ],
)
def test_a_bad_option_is_named_with_its_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field) as caught:
        SchedulerConfig(**{field: value})  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


def test_the_error_of_a_choice_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match='"normal", "prompt", "completion"'):
        SchedulerConfig(engine_type="both")  # type: ignore[arg-type]


def test_an_engine_that_only_decodes_cannot_recompute(core: Core) -> None:
    with pytest.raises(ConfigError, match=r"stop_preempted_request is False.*completion"):
        SchedulerConfig(engine_type="completion", stop_preempted_request=False)
    config = small_config(engine_type="completion", stop_preempted_request=True)
    with pytest.raises(ConfigError, match=r"context_parallel_size is 2.*completion"):
        core.scheduler(config, context_parallel_size=2)
    assert not core.scheduler(config).has_unfinished


def test_an_engine_that_only_prefills_never_plans_ahead() -> None:
    assert SchedulerConfig(async_scheduling=True).plans_ahead
    assert not SchedulerConfig(async_scheduling=True, engine_type="prompt").plans_ahead
    assert SchedulerConfig(async_scheduling=True, engine_type="prompt", max_model_len=100).runtime_length(5) == 110


RUNTIME_LENGTHS = json.loads((Path(__file__).parent / "golden" / "tables.json").read_text())["runtime_max_len"]


@pytest.mark.parametrize("recorded", RUNTIME_LENGTHS, ids=str)
def test_buffers_reach_past_the_longest_sequence_as_recorded(recorded: dict[str, Any]) -> None:
    config = SchedulerConfig(max_model_len=recorded["max_model_len"], async_scheduling=recorded["zos"])
    assert config.runtime_length(recorded["nextn"]) == recorded["runtime"]


def test_the_token_budget_defaults_to_the_largest_need() -> None:
    def budget(draft_length: int = 0, **options: Any) -> int:
        return Sizes.resolve(SchedulerConfig(**options), **SIZES, draft_length=draft_length).max_num_batched_tokens

    assert budget(max_model_len=100) == 4096
    assert budget(max_model_len=5000) == 5000
    assert budget(max_num_seqs=2000, draft_length=5) == 12000


@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        ({"max_num_batched_tokens": 47}, {"draft_length": 5}, "max_num_batched_tokens is 47.*at least 48"),
        ({"max_num_batched_tokens": 15}, {}, "max_num_batched_tokens is 15.*block_size"),
        ({"max_num_batched_tokens": 255, "chunked_prefill": False}, {}, "255.*chunked_prefill is off"),
        ({"max_num_batched_tokens": 16}, {"context_parallel_size": 9}, "16.*2 . context_parallel_size"),
        ({"lookahead_tokens": 65}, {}, "max_num_batched_tokens is 64.*lookahead_tokens"),
        ({"prefill_max_sum_seqlen_k": 255}, {}, "prefill_max_sum_seqlen_k is 255.*256"),
        ({}, {"num_blocks": 1}, "num_blocks is 1"),
        ({}, {"num_state_slots": 1}, "num_state_slots is 1"),
        ({}, {"block_size": 0}, "block_size is 0"),
        ({}, {"draft_length": 16}, "draft_length is 16.*at most 15"),
        ({}, {"draft_length": -1}, "draft_length is -1"),
        ({}, {"tail_length": 0}, "tail_length is 0"),
        ({}, {"vocab_size": 0}, "vocab_size is 0"),
        ({}, {"context_parallel_size": 0}, "context_parallel_size is 0"),
    ],
)
def test_contradicting_sizes_are_refused(
    core: Core, options: dict[str, Any], sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        core.scheduler(small_config(**options), **sizes)


def test_policy_reference_accepts_the_budget_below_the_model_length_of_its_traces() -> None:
    config = small_config(max_num_batched_tokens=128, chunked_prefill=False, policy="reference")
    assert Sizes.resolve(config, **SIZES).max_num_batched_tokens == 128
