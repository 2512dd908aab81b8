"""All pairs of what ordinary runs take samples of: ways to serve, batch sizes, pieces of prompts, draft lengths."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from determinism_testing.company import longest_prompt
from determinism_testing.scene import WAYS as WAYS_OF_LOGITS
from determinism_testing.scene import Scene, write_checkpoint
from determinism_testing.watched import WAYS, Rule, Told, among, drafting, neighbours, short_of_memory, varying, watched
from drafts_testing import budgets
from drafts_testing.bench import Setup

SETUPS: dict[str, Setup] = {
    f"{rule}, {length} drafts": drafting(rule, length, is_async=length % 2 == (rule == "rejection"))
    for rule in ("rejection", "coupled")
    for length in range(6)
}
"""Of either rule every second one overlaps; the random ways have the others."""
every_setup = pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)


def expected(setup: Setup, temperature: float | None = None) -> Told:
    """What is said in place, each request by itself: without drafts where the table lets their number change."""
    is_free = setup.verification == "coupled" or temperature == 0
    plain = drafting("coupled", 0) if is_free else replace(setup, is_async=False)
    return Told(plain, watched(temperature), max_num_seqs=1)


@every_setup
@pytest.mark.parametrize("temperature", [None, 0.0])
def test_ways(setup: Setup, temperature: float | None) -> None:
    told = expected(setup, temperature)
    for name, way in WAYS.items():
        assert way(setup, watched(temperature)) == told, name


@every_setup
def test_batches_of_1_to_64_that_are_full_at_once(setup: Setup) -> None:
    told = expected(setup)
    for size in range(1, 65):
        others = neighbours(size - 1, "mixed", size)
        watched_one = among(setup, watched()[:1], others)
        assert watched_one.said == told.said[:1], size


@every_setup
def test_prompts_in_pieces_of_every_size(setup: Setup) -> None:
    told = expected(setup)
    for size in range(1, 1 + longest_prompt()):
        assert Told(setup, watched(), chunk=size) == told, size


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
@pytest.mark.parametrize("seed", range(40))
def test_random_ways(seed: int, rule: Rule) -> None:
    """Any company, order, arrival, batch, chunks and overlap; coupled ones with any drafts, lengths and memory, too."""
    choose = random.Random(f"{rule} {seed}")
    length = choose.randrange(6) if rule == "coupled" else choose.choice([0, 1, 3, 5])
    setup = drafting(rule, length, is_async=choose.random() < 0.6, is_native=choose.random() < 0.7)
    told = expected(setup)
    for round_number in range(6):
        others = neighbours(choose.randrange(40), "mixed", 1000 * seed + round_number)
        arrivals = {place: choose.randrange(40) for place in range(len(others) + len(watched()))}
        options: dict[str, Any] = {
            "max_num_seqs": choose.randrange(1, 50),
            "prefill_interval_all": choose.choice([1, 2, 5, 70]),
            "prefill_interval_continue": choose.randrange(1, 6),
        }
        chunk = choose.choice([None, 1, 2, 5, 7])
        changed = setup
        if rule == "coupled" and length and choose.random() < 0.4:
            plan = [choose.randrange(1, 7) for _ in range(choose.randrange(1, 6))]
            changed = replace(changed, budget=lambda plan=plan: budgets.planned(plan))
        elif rule == "coupled" and length and choose.random() < 0.5:
            options["max_num_seqs"] = 8
            changed = varying("coupled", length, 8, is_async=setup.is_async, is_native=setup.is_native)
        if rule == "coupled" and choose.random() < 0.4:
            options["max_num_seqs"] = 6
            changed, chunk = replace(changed, num_blocks=short_of_memory(changed).num_blocks), None
        assert among(changed, watched(), others, arrivals=arrivals, chunk=chunk, **options) == told, round_number


@pytest.mark.parametrize("mode", ["quant", "plain"])
@pytest.mark.parametrize("arithmetic", ["exact", "float32"])
def test_logits_in_every_way_of_serving(tmp_path: Path, mode: str, arithmetic: str) -> None:
    write_checkpoint(tmp_path / "checkpoint")
    here = Scene(tmp_path / "checkpoint", mode, arithmetic)
    for name, way in WAYS_OF_LOGITS.items():
        tokens, num_preemptions = here.serve(**way)
        assert here.witness.differing == [], name
        assert tokens == here.tokens, name
        assert bool(num_preemptions) == ("recomputed" in name), name


@pytest.mark.parametrize("mode", ["quant", "plain"])
@pytest.mark.parametrize("arithmetic", ["exact", "float32"])
def test_logits_with_two_threads(tmp_path: Path, mode: str, arithmetic: str) -> None:
    write_checkpoint(tmp_path / "checkpoint")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        here = Scene(tmp_path / "checkpoint", mode, arithmetic)
        torch.set_num_threads(2)
        assert here.serve(**WAYS_OF_LOGITS["padded to 33, with drafts"])[0] == here.tokens
        assert here.witness.differing == []
    finally:
        torch.set_num_threads(before)
