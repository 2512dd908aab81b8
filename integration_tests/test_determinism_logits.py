"""Logits are a function of the text before them, bit for bit: of the model with its cache, served in every way.

Every row of every step is compared with all rows that any other way has computed after the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from determinism_testing.scene import MAX_TOKENS, PROMPT_LENGTHS, WAYS, Scene, scene, write_checkpoint
from thalweg.kernels import bind

SAMPLES = {
    ("quant", "float32"): slice(0, None, 2),
    ("quant", "exact"): slice(1, None, 3),
    ("plain", "exact"): slice(3, None, 4),
    ("plain", "float32"): slice(5, None, 4),
}
CASES = [(*numbers, way) for numbers, part in SAMPLES.items() for way in list(WAYS)[part]]
"""Every way with some numbers, most in float32, where the order of a sum shows; the soak run has all pairs."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("determinism") / "checkpoint"
    write_checkpoint(path)
    return path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("mode", "arithmetic", "way"), CASES)
def test_logits_depend_on_the_text_alone(checkpoint: Path, mode: str, arithmetic: str, way: str) -> None:
    here = scene(checkpoint, mode, arithmetic)
    tokens, num_preemptions = here.serve(**WAYS[way])
    assert here.witness.differing == []
    assert tokens == here.tokens
    assert here.witness.num_again >= len(PROMPT_LENGTHS) * MAX_TOKENS / 2
    assert bool(num_preemptions) == ("recomputed" in way)
    assert min(here.witness.num_decode_rows) >= WAYS[way].get("padded_to", 0)


def test_logits_do_not_depend_on_the_number_of_threads(checkpoint: Path) -> None:
    """The soak run has exact arithmetic, too; two threads that share a processor take their time with it."""
    here = scene(checkpoint, "quant", "float32")
    torch.set_num_threads(2)
    tokens, _ = here.serve(max_tokens=2)
    assert here.witness.differing == []
    assert tokens == [each[:2] for each in here.tokens]
    assert here.witness.num_again == here.witness.num_rows


def test_a_product_that_depends_on_the_batch_is_noticed(checkpoint: Path) -> None:
    """In float32: sums of quantised values are exact in float64 nearly always, in any order."""
    ops = bind("cpu")
    ops.__dict__["matmul"] = lambda x, weight: x @ weight.t()
    here = Scene(checkpoint, "quant", "float32", ops)
    here.serve(**WAYS["one after the other"])
    assert here.witness.differing


def test_padding_that_is_not_kept_apart_is_noticed(checkpoint: Path) -> None:
    """A norm that takes the largest value of the batch for its scale."""
    ops = bind("cpu")
    norm = ops.rms_norm
    ops.__dict__["rms_norm"] = lambda x, weight, eps: norm(x, weight, eps + 1e-3 * float(x.abs().max()))
    here = Scene(checkpoint, "plain", "float32", ops)
    here.serve()
    assert here.witness.differing == []
    here.serve(**WAYS["padded to 8"])
    assert here.witness.differing


@pytest.mark.parametrize(
    "way",
    ["reversed, with drafts, overlapping", "pieces of nine, small batches"],
)
def test_tokens_of_rejection_depend_on_seed_and_draft_length_alone(checkpoint: Path, way: str) -> None:
    """The model with its own drafter. With another length, or without a drafter, texts are others."""
    here = scene(checkpoint, "quant", "exact")
    tokens, _ = here.serve(**WAYS[way] | {"verification": "rejection", "draft_length": 3})
    assert tokens == rejected_tokens(checkpoint)
    assert here.witness.differing == []


@cache
def rejected_tokens(path: Path) -> list[tuple[int, ...]]:
    here = scene(path, "quant", "exact")
    with_one, with_three = (here.serve(verification="rejection", draft_length=length)[0] for length in (1, 3))
    assert with_one != with_three
    assert with_three != here.tokens
    return with_three
