"""Bounded replay of the consumer layers: what stays exact, and that both ways of doing it are one; bounded_replay.md 7.

The tiny model has a window of 16, 3 consumer layers behind 4 others, and drafts read two of the consumers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_testing.replay import Replay, prefill

from thalweg.interfaces import ConfigError
from thalweg.model import Model, SequenceMemory, small_config
from thalweg.model.metadata import ForwardBatch
from thalweg.model.replay import check_replay

MODES = ("quant", "plain")
FIRST, WINDOW, KEEP = 4, 16, 22
"""The first consumer layer; the window; window and what can be rolled back."""
LENGTH = 90
CHUNKS = ([LENGTH], [68, 22], [69, 21], [5, 12, 40, 10, 1, 22])


def values_by_kind(cache: Any, running: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What producers keep and all streams, and window keys of the consumers."""
    found = cache.values(running)
    windows = {name: value for name, value in found.items() if name in {f"window {k}" for k in range(FIRST, 7)}}
    return {name: value for name, value in found.items() if name not in windows}, windows


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def run(cache: Any, tokens: torch.Tensor, chunks: list[int], replay: Replay | None) -> tuple[Any, torch.Tensor]:
    """Prefill a sequence whose prompt are as many of the tokens as the chunks have."""
    running, features = cache.add(tokens), torch.empty(0)
    whole, running.tokens = running.tokens, tokens[: sum(chunks)]
    for count in chunks:
        if replay is None:
            cache.prefill([(running, count)])
        else:
            features = prefill(cache, [(running, count)], replay)
    running.tokens = whole
    return running, features


def decode(cache: Any, running: Any) -> None:
    while running.done < len(running.tokens):
        cache.decode([(running, 1)])


@pytest.mark.parametrize("mode", MODES)
def test_compact_is_mask_whatever_the_chunks(
    mode: str, load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    """T1, T3, T4 and T5: rings below the kept range stay poisoned, which a read of them would show."""
    model = load_tiny(mode)
    one, off = make_cache(model), make_cache(model)
    masked, seen = run(one, tiny_tokens, [LENGTH], Replay("mask", KEEP))
    plain, _ = run(off, tiny_tokens, [LENGTH], None)
    after_prompt = one.values(masked)
    decode(one, masked)
    for chunks in CHUNKS:
        two = make_cache(model)
        compact, kept = run(two, tiny_tokens, chunks, Replay("compact", KEEP))
        assert_same(values_by_kind(two, compact)[0], values_by_kind(off, plain)[0])
        assert_same(two.values(compact), after_prompt)
        last = min(len(kept), KEEP)
        assert torch.equal(kept[-last:], seen[-last:])
        decode(two, compact)
        for position in range(LENGTH - KEEP, len(tiny_tokens)):
            assert torch.equal(compact.logits[position], masked.logits[position]), (chunks, position)


@pytest.mark.parametrize("mode", MODES)
def test_masked_windows_are_those_of_whole_sequences(
    mode: str, load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    model, tokens = load_tiny(mode), tiny_tokens[:LENGTH]
    running, _ = run(make_cache(model), tokens, [40, 50], Replay("mask", KEEP))
    memory = CutWindows(model.config, [LENGTH], model.numerics)
    batch = ForwardBatch(tokens, memory.positions, model._ngram_ids([tokens], None))
    whole = model.logits(model.forward(batch, memory))
    for position in range(LENGTH):
        assert torch.equal(running.logits[position], whole[position]), position


class CutWindows(SequenceMemory):
    """Whole sequences of which consumer layers see no window key before the kept range."""

    def window(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, indices = super().window(layer, rows)
        if layer < FIRST:
            return keys, indices
        places = [[place for place in row if place >= LENGTH - KEEP] for row in indices.tolist()]
        return keys, torch.tensor([row + [-1] * (WINDOW - len(row)) for row in places])


@pytest.mark.parametrize("replay", [Replay("mask", KEEP), Replay("compact", KEEP)], ids=str)
def test_a_prompt_no_longer_than_what_is_kept_is_exact(
    replay: Replay, load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    """T2 and T10."""
    model, tokens = load_tiny("quant"), tiny_tokens[: replay.keep + 2]
    one, two = make_cache(model), make_cache(model)
    bounded, _ = run(one, tokens, [replay.keep - 9, 9], replay)
    plain, _ = run(two, tokens, [replay.keep], None)
    assert_same(one.values(bounded), two.values(plain))
    decode(one, bounded)
    decode(two, plain)
    assert all(torch.equal(bounded.logits[place], plain.logits[place]) for place in range(len(tokens)))


def test_a_sequence_among_others_is_itself_alone(
    load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    """Chunks before, across and inside the kept range, and a prompt shorter than it, in one step each."""
    model, replay = load_tiny("quant"), Replay("compact", KEEP)
    prompts = [tiny_tokens, tiny_tokens.flip(0)[:61], tiny_tokens[10:43], tiny_tokens[:5]]
    together = make_cache(model)
    group = [together.add(tokens) for tokens in prompts]
    prefill(together, [(group[0], 50), (group[1], 45), (group[3], 2)], replay)
    prefill(together, [(group[2], 33), (group[0], 46), (group[3], 3), (group[1], 16)], replay)
    for tokens, running in zip(prompts, group, strict=True):
        cache = make_cache(model)
        alone = cache.add(tokens)
        prefill(cache, [(alone, len(tokens))], replay)
        assert_same(together.values(running), cache.values(alone))
        last = len(tokens) - 1
        assert torch.equal(running.logits[last], alone.logits[last])


def test_it_changes_what_the_consumers_keep(
    load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    """An approximation: were nothing changed, the tests above would compare equal things."""
    model = load_tiny("quant")
    one, two = make_cache(model), make_cache(model)
    bounded, _ = run(one, tiny_tokens, [LENGTH], Replay("compact", KEEP))
    plain, _ = run(two, tiny_tokens, [LENGTH], None)
    windows, exact = values_by_kind(one, bounded)[1], values_by_kind(two, plain)[1]
    assert torch.equal(windows[f"window {FIRST}"], exact[f"window {FIRST}"])  # a projection of exact rows
    assert not torch.equal(windows["window 6"], exact["window 6"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2], "kv_source_layer_ids": [2], "index_source_layer_ids": [2],
             "candidate_source_layer_id": None},
            r"compress_ratios is \[0, 0, 2, 2, 2, 2, 2, 2\]; bounded replay needs layers of ratio 1 behind others",
        ),
        ({"kv_source_layer_ids": [2, 4, 6]}, r"kv_source_layer_ids has \[6\]; .* needs none above 4"),
        ({"index_k_source_layer_ids": [2, 4, 6]}, r"index_k_source_layer_ids has \[6\]; .* needs none above 4"),
        ({"engram_layer_ids": [1, 5]}, r"engram_layer_ids has \[5\]; .* needs all of them below 4"),
        (
            {"num_nextn_predict_layers": 1, "dspark_target_layer_ids": [3, 6]},
            r"dspark_target_layer_ids is \[3, 6\]; .* needs all below 4 or none",
        ),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_served_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_replay(small_config(**changes))
