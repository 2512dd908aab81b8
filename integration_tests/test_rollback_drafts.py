"""However the cache was filled, the same drafts come out of it, bit for bit: chunks, forks, slots that others left."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rollback_testing.bench import POISON, Bench
from rollback_testing.cases import random_outcomes, random_text
from rollback_testing.changes import Oracle
from rollback_testing.history import History, branch_off
from rollback_testing.models import TINY_A, tiny_a, tiny_bench, tiny_history, tiny_late_history
from rollback_testing.plans import DecodeRow, Lane
from rollback_testing.rounds import Life, check_memory, draft, play_round
from rollback_testing.serving import Served, serve
from thalweg.engine import SamplingParams


def begin(name: str, history: History, lane: Lane, cached: int = 0) -> Life:
    return Life(name, history, lane, cached, np.random.default_rng(5))


def prefill(bench: Bench, life: Life, length: int) -> None:
    bench.prefill([(life.lane, 0, length)])
    life.cached = length
    check_memory(bench, life)
    draft(bench, [life])


def play(bench: Bench, life: Life, rounds: int) -> None:
    for outcome in random_outcomes(life.random, bench.draft_length, rounds):
        play_round(bench, [life], [outcome])


def test_chunks_of_every_size() -> None:
    bench, history, length = tiny_bench(), tiny_history(), 47
    lives = [(begin(f"chunks of {size}", history, bench.lane(history.text)), size) for size in range(1, length + 1)]
    going = lives
    while going:
        bench.prefill([(life.lane, life.cached, min(length, life.cached + size)) for life, size in going])
        for life, size in going:
            life.cached = min(length, life.cached + size)
            check_memory(bench, life)
            bench.poison_unreadable(life.lane, bench.readable.next(life.cached))
        going = [(life, size) for life, size in going if life.cached < length]
    for life, _ in lives:
        bench.free(life.lane)


@pytest.mark.parametrize("cached", [3, 41, 128, 129])
def test_a_fork_and_its_parent_go_their_own_ways(cached: int) -> None:
    """Phases of the window, of the pair and of the block that is copied; at 128 there is none to copy."""
    bench, history = tiny_bench(), tiny_history() if cached < 128 else tiny_late_history()
    text = np.concatenate((history.text[:cached], random_text(9, 256, 24)))
    other = branch_off(bench, history, cached, text)
    parent = begin("parent", history, bench.lane(history.text))
    prefill(bench, parent, cached)
    child = begin("child", other, bench.fork(parent.lane, cached, text), cached)
    for mine, theirs in (((3, 3), (3, 0)), ((2, 0), (3, 2)), ((3, 1), (1, 1)), ((0, 0), (3, 3)), ((3, 2), (2, 1))):
        play_round(bench, [parent, child], [mine, theirs])
    bench.free(parent.lane)
    play(bench, child, 2)
    bench.free(child.lane)


@pytest.mark.parametrize("is_poisoned", [True, False])
def test_a_slot_that_another_sequence_left_behind(is_poisoned: bool) -> None:
    bench, history = tiny_bench(), tiny_history()
    first = begin("the one before", history, bench.lane(history.text))
    prefill(bench, first, 30)
    play(bench, first, 6)
    if is_poisoned:
        bench.free(first.lane)
        second = begin("the one after", history, bench.lane(history.text))
        assert (second.lane.slot, sorted(second.lane.blocks)) == (first.lane.slot, sorted(first.lane.blocks))
    else:
        second = begin("the one after", history, first.lane)
    prefill(bench, second, 9)
    play(bench, second, 10)
    bench.free(second.lane)


def test_recomputed_after_rounds_elsewhere() -> None:
    bench, history = tiny_bench(), tiny_history()
    life = begin("preempted", history, bench.lane(history.text))
    prefill(bench, life, 7)
    play(bench, life, 12)
    cached, kept = life.cached, bench.lane(history.text)
    bench.free(life.lane)
    life.lane = kept
    prefill(bench, life, cached)
    play(bench, life, 6)
    bench.free(life.lane)


def test_poison_in_any_main_key_shows_in_the_drafts() -> None:
    bench, history, cached = tiny_bench(), tiny_history(), 60
    parts = bench.readable.parts_of_drafts(cached)
    assert len(parts) == 16, "one draft layer with a window of 16"
    slot, blocks = bench.readable.kept(cached)
    lanes = [bench.lane(history.text, history.memory[cached], (slot & ~part, blocks)) for part, _ in parts.values()]
    for name, lane, proposal in zip(parts, lanes, bench.propose([(lane, cached) for lane in lanes]), strict=True):
        assert not proposal.equals(history.proposals[cached]), f"nobody reads {name}"
        bench.free(lane)


def test_nobody_writes_to_the_memory_of_placeholders() -> None:
    bench, history = tiny_bench(), tiny_history()
    lane = bench.lane(history.text, history.memory[60], bench.readable.next(60))
    bench.decode([DecodeRow(lane, 60, history.text[61:64], 3)])
    bench.propose([(lane, 60)])
    bench.free(lane)
    pools = bench.device.pools
    assert bool((pools.states == POISON).all())
    assert bool((pools.blocks == POISON).all())


PROMPTS = tuple(tuple(random_text(length, 240, length).tolist()) for length in (116, 121, 125))
SIZES = {"max_num_seqs": 3, "max_model_len": 160, "stop_preempted_request": False}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@cache
def oracle() -> Oracle:
    return Oracle(serve(str(TINY_A), *tiny_a(), PROMPTS, GREEDY, draft_length=0, **SIZES).texts)


@cache
def with_enough_memory() -> Served:
    return serve(str(TINY_A), *tiny_a(), PROMPTS, GREEDY, oracle=oracle(), async_scheduling=False, **SIZES)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_preempted_request_gets_the_same_drafts(is_async: bool) -> None:
    """Three requests outgrow their first blocks while there is memory for less."""
    roomy = with_enough_memory()
    tight = serve(
        str(TINY_A), *tiny_a(), PROMPTS, GREEDY, oracle=oracle(), num_blocks=5, async_scheduling=is_async, **SIZES
    )
    assert roomy.num_preempted == 0 < tight.num_preempted
    assert roomy.texts == tight.texts == oracle().texts
    assert not tight.changed_proposals
    shared = roomy.proposals.keys() & tight.proposals.keys()
    assert {key: roomy.proposals[key] for key in shared} == {key: tight.proposals[key] for key in shared}
    assert len(shared) > len(roomy.proposals) / 2


@pytest.mark.parametrize("is_async", [False, True])
def test_drafts_may_reach_past_the_longest_context(is_async: bool) -> None:
    prompts = [random_text(length, 240, length).tolist() for length in (243, 250)]
    sizes = {"max_num_seqs": 2, "max_model_len": 256, "async_scheduling": is_async}
    plain = serve(str(TINY_A), *tiny_a(), prompts, GREEDY, draft_length=0, **sizes)
    drafted = serve(str(TINY_A), *tiny_a(), prompts, GREEDY, oracle=Oracle(plain.texts, accuracy=0.9), **sizes)
    assert drafted.texts == plain.texts
    assert max(position for _, position in drafted.blocks) > tiny_a()[0].config.max_position_embeddings
