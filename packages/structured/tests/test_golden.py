"""Recorded traces of matchers, and recorded logits with masks applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matcher_testing.masks import allowed, tokens_of
from matcher_testing.vocabularies import golden, golden_info, golden_vocabulary

from thalweg.interfaces import GrammarSpec
from thalweg.structured import GrammarMatcher, compile_grammar
from thalweg.structured.bitmask import is_allowed

TRACES = golden("matcher.json")
MASKED = golden("apply_bitmask.json")


def specification(case: dict[str, Any]) -> GrammarSpec:
    if case["schema_type"] == "json":
        return GrammarSpec("json", case["schema"], max_whitespace=None)
    return GrammarSpec(case["schema_type"], case["schema"])


@pytest.mark.parametrize("case", TRACES["cases"], ids=lambda case: case["name"])
def test_a_matcher_goes_through_the_recorded_states(case: dict[str, Any]) -> None:
    matcher = GrammarMatcher(
        compile_grammar(specification(case), golden_info()),
        case["trigger_token_ids"],
        case["bound_token_id"],
        max_rollback=TRACES["max_rollback_tokens"],
    )
    for step in case["steps"]:
        operation, *operands = step["op"]
        if operation == "accept":
            assert matcher.accept(*operands) is step["accepted"]
        elif operation == "rollback":
            matcher.rollback(*operands)
        assert (matcher.is_constrained or matcher.is_finished) is step["constrained"]
        assert matcher.is_finished is step["finished"]
        assert matcher.trigger_progress == step["trigger_progress"]
        assert matcher.tokens_after_bound == step["tokens_after_bound"]
        assert matcher.tokens_after_end == step["tokens_after_eos"]
        if step["constrained"]:
            assert allowed(matcher, golden_vocabulary().vocab_size) == step["allowed"]


def test_the_recorded_states_are_all_there() -> None:
    assert sum(len(case["steps"]) for case in TRACES["cases"]) == 104


@pytest.mark.parametrize("case", MASKED, ids=range(len(MASKED)))
def test_recorded_logits_lose_the_columns_that_their_masks_do_not_have(case: dict[str, Any]) -> None:
    bitmask = np.array(case["bitmask"], np.int64).astype(np.int32)
    first_rows = case["ftp"] or list(range(len(case["logits"])))
    ends = [*first_rows[1:], len(case["logits"])]
    masked: list[list[int]] = [[] for _ in case["logits"]]
    for request in case["indices"]:
        row = first_rows[request] + case["step"]
        if row < ends[request]:
            columns = range(min(case["vocab"], 32 * bitmask.shape[1]))
            masked[row] = [column for column in columns if not is_allowed(bitmask[request], column)]
            assert sorted({*columns} - {*masked[row]}) == tokens_of(bitmask[request], len(columns))
    assert masked == case["masked"]
