"""How often another arithmetic finds another likeliest token, on the small trained model and its own kind of text.

Every step is teacher-forced: 200 excerpts of this repository, of which each position is judged. The measure is exact
arithmetic (float64 between the roundings of the model). Beside it: float32 on the CPU; float64 whose attention rounds
probabilities to bfloat16, as kernels on tensor cores do; float64 whose matrix products are off by 2^-k of a row's size,
which says how accurate sums must be for the same tokens; where there is a GPU, the kernels of prefill and of decode
instead. A gap is that between the two likeliest tokens of exact arithmetic, in spacings (ulp) of bfloat16 at the larger
one. `--smoke` takes two excerpts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from cuda_timing import require_gpu
from report import Row, arguments, publish
from step_inputs import TOKENS_PER_BLOCK, geometry_of, moved
from tokenizers import Tokenizer

from thalweg.cache import CachePools, MetadataShape, build_decode_metadata, build_prefill_metadata
from thalweg.kernels import BoundOps, bind
from thalweg.model import DecodeMetadata, EngramVocabulary, ForwardBatch, Model, NativeModel, PrefillMetadata
from thalweg.tiny import checkpoint_path

NUM_EXCERPTS, NUM_TOKENS = 200, 48
SUM_BITS = (44, 38, 32, 26, 20, 14)
PRODUCTS = ("matmul", "grouped_matmul")
BF16_BITS = 7
"""Stored bits of its fraction."""
CLOSE = 2
"""A gap of so many spacings may be closed by one rounding of each of the two."""


class InexactProducts:
    """The CPU's ops, with noise of a given relative size in every matrix product."""

    def __init__(self, size: float) -> None:
        self._ops = bind("cpu")
        self._size = size
        self._generator = torch.Generator().manual_seed(0)

    def __getattr__(self, op: str) -> Callable[..., Any]:
        function = getattr(self._ops, op)
        return functools.partial(self._noisy, function) if op in PRODUCTS else cast("Callable[..., Any]", function)

    def _noisy(self, function: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
        product = function(*args)
        noise = torch.randn(product.shape, generator=self._generator, dtype=product.dtype)
        return product + self._size * product.square().mean(-1, keepdim=True).sqrt() * noise


class RoundedProbabilities:
    """The CPU's ops, with the probabilities of attention rounded to bfloat16 before they meet the values."""

    def __init__(self) -> None:
        self._ops = bind("cpu")

    def __getattr__(self, op: str) -> Callable[..., Any]:
        return cast("Callable[..., Any]", getattr(self._ops, op))

    def sparse_attention(
        self, q: torch.Tensor, keys: torch.Tensor, indices: torch.Tensor, sink: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """As the op, for rows that have a key."""
        own = keys[indices.clamp(min=0)]
        logits = torch.einsum("nhd,nkd->nhk", q, own) * scale
        logits = logits.masked_fill(indices[:, None] < 0, -torch.inf)
        level = logits.amax(-1, keepdim=True)
        probabilities = torch.exp(logits - level)
        total = probabilities.sum(-1, keepdim=True) + torch.exp(sink[:, None] - level)
        return torch.einsum("nhk,nkd->nhd", probabilities.bfloat16().type_as(q), own) / total


class PagedSteps:
    """Logits of excerpts by the kernels of a backend, through its paged cache."""

    def __init__(self, tokens: torch.Tensor, backend: str, device: torch.device) -> None:
        """tokens: int64 [excerpts, length]; an excerpt fits in a block."""
        model = NativeModel.load(checkpoint_path(), bind(backend), device=device, num_positions=TOKENS_PER_BLOCK)
        count, geometry = tokens.shape[0], geometry_of(model.config)
        size, vocabulary = model.config.engram_max_ngram_size, cast("EngramVocabulary", model.vocabulary)
        self._model = model
        self._tokens = tokens.to(device)
        ngram_ids = np.stack([vocabulary.ngram_ids(line.numpy(), size) for line in tokens])
        self._ngram_ids = torch.from_numpy(ngram_ids).to(device)
        self._pools = CachePools(geometry, 1 + count, 1 + count, device)
        self._shape = MetadataShape.of(geometry)
        self._places = 1 + np.arange(count), np.arange(count + 1), 1 + np.arange(count)
        """State slot of each excerpt, offsets of its blocks, ids of all blocks."""

    def prefill(self) -> torch.Tensor:
        """float32 [excerpts, length, V] of one step with all tokens."""
        lengths = np.full(*self._tokens.shape)
        arrays = build_prefill_metadata(self._shape, lengths, lengths, *self._places)
        metadata = PrefillMetadata(**moved(arrays.metadata(), self._model.device))
        return self._logits(slice(None), arrays.positions, metadata)

    def decode(self) -> torch.Tensor:
        """The same of one step per position."""
        count, length = self._tokens.shape
        steps = []
        for position in range(length):
            ones, contexts = np.ones(count, np.int64), np.full(count, position + 1)
            arrays = build_decode_metadata(self._shape, ones, contexts, *self._places, table_width=1)
            metadata = DecodeMetadata(**moved(arrays.metadata(), self._model.device))
            steps.append(self._logits(slice(position, position + 1), arrays.positions, metadata))
        return torch.cat(steps, 1)

    def _logits(
        self, columns: slice, positions: np.ndarray[Any, Any], metadata: DecodeMetadata | PrefillMetadata
    ) -> torch.Tensor:
        tokens = self._tokens[:, columns]
        where = moved(positions.astype(np.int64), self._model.device)
        batch = ForwardBatch(tokens.reshape(-1), where, self._ngram_ids[:, columns].flatten(0, 1))
        memory = self._model.paged_memory(self._pools, metadata, where)
        return self._model.logits(self._model.forward(batch, memory)).view(*tokens.shape, -1).cpu()


def excerpts(count: int, length: int) -> torch.Tensor:
    """int64 [count, length] tokens, spread over the Python files of this repository."""
    tokenizer = Tokenizer.from_file(str(checkpoint_path() / "tokenizer.json"))
    files = sorted((Path(__file__).parents[1] / "packages").glob("*/src/**/*.py"))
    ids = np.concatenate([tokenizer.encode(file.read_text()).ids for file in files])
    starts = np.linspace(0, ids.size - length, count).astype(int)
    return torch.from_numpy(np.stack([ids[start : start + length] for start in starts]))


def on_cpu(tokens: torch.Tensor, arithmetic: str = "exact", ops: object = None) -> torch.Tensor:
    """float32 [excerpts, length, V] by the reference model."""
    model = Model.load(checkpoint_path(), arithmetic=arithmetic, ops=cast("BoundOps | None", ops))
    with torch.no_grad():
        return torch.stack(model.forward_sequences(list(tokens)))


def against(name: str, exact: torch.Tensor, found: torch.Tensor) -> Row:
    """How far logits [..., V] are from those of exact arithmetic, or of another that takes its place."""
    best = exact.topk(2).values
    spacing = torch.exp2(best[..., 0].abs().log2().floor() - BF16_BITS)
    is_close = best[..., 0] - best[..., 1] < CLOSE * spacing
    differs = exact.argmax(-1) != found.argmax(-1)
    return {
        "arithmetic": name,
        "steps": differs.numel(),
        "another token": int(differs.sum()),
        "%": 100 * float(differs.double().mean()),
        f"gap of {CLOSE} ulp or more, %": 100 * float((differs & ~is_close).double().mean()),
        "error of logits, %": 100 * float((found - exact).norm() / exact.norm()),
        f"steps with a gap below {CLOSE} ulp, %": 100 * float(is_close.double().mean()),
    }


def paged(name: str, exact: torch.Tensor, steps: PagedSteps) -> list[Row]:
    """Prefill and decode of a backend, and its prefill against its decode."""
    prefill, decode = steps.prefill(), steps.decode()
    return [
        against(f"{name}, prefill", exact, prefill),
        against(f"{name}, decode", exact, decode),
        against(f"{name}, prefill against decode", decode, prefill),
    ]


def measured(tokens: torch.Tensor, sum_bits: Sequence[int]) -> list[Row]:
    exact = on_cpu(tokens)
    rows = [against("float32", exact, on_cpu(tokens, "float32"))]
    if torch.cuda.is_available():
        require_gpu()
        return [*rows, *paged("GPU", exact, PagedSteps(tokens, "sm90", torch.device("cuda")))]
    rows.append(against("probabilities in bfloat16", exact, on_cpu(tokens, ops=RoundedProbabilities())))
    for bits in sum_bits:
        rows.append(against(f"products off by 2^-{bits}", exact, on_cpu(tokens, ops=InexactProducts(2.0**-bits))))
    return rows


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    if options.smoke:
        tokens = excerpts(2, 16)
        on_formats = paged("native", on_cpu(tokens), PagedSteps(tokens, "cpu", torch.device("cpu")))
        publish([*on_formats, *measured(tokens, SUM_BITS[:1])], options.json)
        return
    publish(measured(excerpts(NUM_EXCERPTS, NUM_TOKENS), SUM_BITS), options.json)


if __name__ == "__main__":
    main()
