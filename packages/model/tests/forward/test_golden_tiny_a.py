"""The tiny checkpoint against its vectors: bit for bit with double carriers, within stated tolerances with float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.model import Model, Trace

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_a"
RUNS = [(mode, kind) for mode in ("plain", "quant") for kind in ("text", "image")]


def arrays(name: str) -> dict[str, torch.Tensor]:
    """Arrays of a vector file; `.bf16` keys hold bit patterns."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        found = {}
        for key in file:
            value = torch.from_numpy(file[key])
            if key.endswith(".bf16"):
                value = (torch.from_numpy(file[key].astype(np.int32)) << 16).view(torch.float32)
            found[key.removesuffix(".bf16")] = value
        return found


@pytest.fixture(scope="module")
def run(load_tiny: Callable[..., Model]) -> Callable[..., tuple[torch.Tensor, Trace, Mapping[str, torch.Tensor]]]:
    done: dict[tuple[str, str, str], tuple[torch.Tensor, Trace, Mapping[str, torch.Tensor]]] = {}

    def forward(
        mode: str, kind: str, arithmetic: str = "exact"
    ) -> tuple[torch.Tensor, Trace, Mapping[str, torch.Tensor]]:
        if (mode, kind, arithmetic) not in done:
            expected, trace, images = arrays(f"expected_{mode}_{kind}"), Trace(), {}
            if kind == "image":
                mask = expected["image_mask"]
                images = {"image_masks": [mask], "image_embeddings": expected["image_embeds_f32"][mask]}
            model = load_tiny(mode, arithmetic)
            logits = model.forward_sequences([expected["input_ids"]], trace=trace, **images)[0]
            done[mode, kind, arithmetic] = logits, trace, expected
        return done[mode, kind, arithmetic]

    return forward


def assert_equal(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.is_floating_point():
        found = found.float()
    assert found.shape == expected.shape, name
    assert torch.equal(found.to(expected.dtype), expected), name


def traced(trace: Trace, key: str) -> torch.Tensor:
    layer, name = key[1:].split("_", 1)
    return trace[{"trunk_out": "trunk", "pre_out": "pre"}.get(name, name), int(layer)]


@pytest.mark.parametrize(("mode", "kind"), RUNS)
def test_logits_are_bit_equal(mode: str, kind: str, run: Callable[..., Any]) -> None:
    logits, _, expected = run(mode, kind)
    assert logits.dtype == torch.float32
    assert_equal("logits", logits, expected["logits"])


@pytest.mark.parametrize(("mode", "kind"), RUNS)
def test_selections_experts_weights_and_hashes_are_equal(mode: str, kind: str, run: Callable[..., Any]) -> None:
    _, trace, _ = run(mode, kind)
    for key, expected in arrays(f"selection_{mode}_{kind}").items():
        assert_equal(key, traced(trace, key), expected)


@pytest.mark.parametrize(("mode", "kind"), [("plain", "text"), ("quant", "text"), ("quant", "image")])
def test_traces_are_bit_equal(mode: str, kind: str, run: Callable[..., Any]) -> None:
    _, trace, expected = run(mode, kind)
    vectors = arrays(f"trace_{mode}_{kind}")
    positions = vectors.pop("positions")
    assert_equal("final_hidden", trace["final_hidden", -1][positions], vectors.pop("final_hidden"))
    for key, value in vectors.items():
        found = traced(trace, key)[positions]
        if key.endswith("engram_gate") and kind == "image":
            is_text = ~expected["image_mask"][positions]
            found, value = found[is_text], value[is_text]
        assert_equal(key, found, value)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_every_layer_is_bit_equal(part: int, run: Callable[..., Any]) -> None:
    _, trace, _ = run("quant", "text")
    for key, expected in arrays(f"layers_quant_text_{part}").items():
        assert_equal(key, traced(trace, key), expected)


@pytest.mark.parametrize("kind", ["text", "image"])
def test_plain_float32_stays_close_and_selects_the_same(kind: str, run: Callable[..., Any]) -> None:
    logits, trace, expected = run("plain", kind, "float32")
    assert (logits - expected["logits"]).abs().max() <= 1e-3
    for key, value in arrays(f"selection_plain_{kind}").items():
        if not value.is_floating_point():
            assert_equal(key, traced(trace, key), value)


@pytest.mark.parametrize("kind", ["text", "image"])
def test_quant_float32_stays_close(kind: str, run: Callable[..., Any]) -> None:
    logits, _, expected = run("quant", kind, "float32")
    cosine = torch.nn.functional.cosine_similarity(logits, expected["logits"], dim=1)
    assert cosine.median() >= 0.999
    assert cosine.min() >= 0.95
    assert (logits.argmax(1) == expected["logits"].argmax(1)).float().mean() >= 0.9


def test_rows_before_an_image_are_those_of_the_text(run: Callable[..., Any]) -> None:
    _, _, expected = run("quant", "image")
    first = int(expected["image_mask"].nonzero()[0])
    assert torch.equal(expected["input_ids"][:first], run("quant", "text")[2]["input_ids"][:first])
    assert torch.equal(run("quant", "image")[0][:first], run("quant", "text")[0][:first])
