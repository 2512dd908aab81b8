"""However a sequence is cut into steps, and whoever runs beside it, its bits are those of one whole pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thalweg.model import Model

MODES = ("quant", "plain")


@pytest.fixture(scope="module")
def whole(load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor) -> Callable[[str], torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def logits(mode: str) -> torch.Tensor:
        if mode not in found:
            found[mode] = load_tiny(mode).forward_sequences([tiny_tokens])[0]
        return found[mode]

    return logits


def stacked(running: Any) -> torch.Tensor:
    return torch.stack([running.logits[position] for position in sorted(running.logits)])


def prefill_in_chunks(cache: Any, running: Any, chunks: list[int]) -> None:
    for count in chunks:
        cache.prefill([(running, count)])


def assert_same_values(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [[96], [5, 6, 17, 40, 28], [1, 1, 1, 93], [15, 16, 17, 48]], ids=str)
def test_any_chunking_equals_the_whole(
    mode: str,
    chunks: list[int],
    load_tiny: Callable[..., Model],
    tiny_tokens: torch.Tensor,
    make_cache: Callable[..., Any],
    whole: Callable[[str], torch.Tensor],
) -> None:
    cache = make_cache(load_tiny(mode))
    running = cache.add(tiny_tokens)
    prefill_in_chunks(cache, running, chunks)
    assert torch.equal(stacked(running), whole(mode))


@pytest.mark.parametrize("mode", MODES)
def test_token_by_token_equals_the_whole(
    mode: str,
    load_tiny: Callable[..., Model],
    tiny_tokens: torch.Tensor,
    make_cache: Callable[..., Any],
    whole: Callable[[str], torch.Tensor],
) -> None:
    cache = make_cache(load_tiny(mode))
    running, one_chunk = cache.add(tiny_tokens), cache.add(tiny_tokens)
    for _ in range(len(tiny_tokens)):
        cache.decode([(running, 1)])
    cache.prefill([(one_chunk, len(tiny_tokens))])
    assert torch.equal(stacked(running), whole(mode))
    assert_same_values(cache.values(running), cache.values(one_chunk))


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_among_others_equals_itself_alone(
    mode: str, load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    model = load_tiny(mode)
    prompts = [tiny_tokens, tiny_tokens.flip(0)[:61], tiny_tokens[10:43], tiny_tokens[:3], tiny_tokens[50:51]]
    together = make_cache(model)
    group = [together.add(tokens) for tokens in prompts]
    together.prefill([(group[0], 70), (group[1], 20), (group[4], 1)])
    together.prefill([(group[2], 7), (group[0], 1), (group[3], 2), (group[1], 33)])
    while any(running.done < len(running.tokens) for running in group):
        rows = [(running, 1) for running in group if running.done < len(running.tokens)]
        together.decode(rows, placeholders=2)
    for tokens, running in zip(prompts, group, strict=True):
        alone = make_cache(model)
        single = alone.add(tokens)
        alone.prefill([(single, len(tokens))])
        assert torch.equal(stacked(running), stacked(single))
        assert_same_values(together.values(running), alone.values(single))


@pytest.mark.parametrize("mode", MODES)
def test_a_permuted_block_table_changes_nothing(
    mode: str,
    load_tiny: Callable[..., Model],
    tiny_tokens: torch.Tensor,
    make_cache: Callable[..., Any],
    whole: Callable[[str], torch.Tensor],
) -> None:
    cache = make_cache(load_tiny(mode), seed=7)
    running = cache.add(tiny_tokens)
    prefill_in_chunks(cache, running, [37, 40])
    while running.done < len(tiny_tokens):
        cache.decode([(running, 1)])
    assert torch.equal(stacked(running), whole(mode))


@pytest.mark.parametrize("keep", [1, 2, 3, 5, 6])
def test_rejected_drafts_leave_no_trace(
    keep: int,
    load_tiny: Callable[..., Model],
    tiny_tokens: torch.Tensor,
    make_cache: Callable[..., Any],
    whole: Callable[[str], torch.Tensor],
) -> None:
    cache = make_cache(load_tiny("quant"))
    running = cache.add(tiny_tokens)
    cache.prefill([(running, 41)])
    while running.done + 6 <= len(tiny_tokens):
        begin = running.done
        truth = running.tokens
        running.tokens = truth.clone()
        running.tokens[begin + keep : begin + 6] = (truth[begin + keep : begin + 6] + 13) % 200 + 20
        cache.decode([(running, 6)])
        running.tokens, running.done = truth, begin + keep
    for position in range(running.done):
        assert torch.equal(running.logits[position], whole("quant")[position]), position


def test_two_threads_give_the_bits_of_one(
    load_tiny: Callable[..., Model],
    tiny_tokens: torch.Tensor,
    make_cache: Callable[..., Any],
    whole: Callable[[str], torch.Tensor],
) -> None:
    threads, model = torch.get_num_threads(), load_tiny("quant")
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            # Enough rows that torch and its GEMM really share the work.
            for logits in model.forward_sequences([tiny_tokens] * 4):
                assert torch.equal(logits, whole("quant"))
            cache = make_cache(model)
            running = cache.add(tiny_tokens)
            cache.prefill([(running, 95)])
            cache.decode([(running, 1)])
            assert torch.equal(stacked(running), whole("quant"))
    finally:
        torch.set_num_threads(threads)


def test_a_cache_of_the_other_mode_is_refused(
    load_tiny: Callable[..., Model], tiny_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    cache = make_cache(load_tiny("plain"))
    running = cache.add(tiny_tokens)
    cache.model = load_tiny("quant")
    with pytest.raises(ValueError, match=r"window records of the cache have 512 bytes; quant mode .* needs 66"):
        cache.prefill([(running, 4)])
