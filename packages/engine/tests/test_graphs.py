"""Graphs of decode steps: their sizes, the rows they are padded with, and that they change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.graphing import GraphingBackend
from hypothesis import given
from hypothesis import strategies as st

from thalweg.cache import MetadataShape
from thalweg.engine import LLM, SamplingParams, assembly
from thalweg.engine.decode_tensors import from_tensors, tensors_of
from thalweg.engine.graphs import RowGraphs, graph_sizes, size_for
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.interfaces import BackendUnavailableError, InvariantError
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model.metadata import DecodeMetadata, ForwardBatch


@pytest.mark.parametrize(
    ("largest", "interval", "sizes"),
    [
        (1, 8, (1,)),
        (6, 8, (1, 2, 4, 6)),
        (8, 8, (1, 2, 4, 8)),
        (9, 8, (1, 2, 4, 8, 9)),
        (30, 8, (1, 2, 4, 8, 16, 24, 30)),
        (12, 1, tuple(range(1, 13))),
        (12, 5, (1, 2, 4, 5, 10, 12)),
    ],
)
def test_sizes_are_powers_of_two_then_multiples_then_the_largest(
    largest: int, interval: int, sizes: tuple[int, ...]
) -> None:
    assert graph_sizes(largest, interval) == sizes


@given(st.integers(1, 2000), st.integers(1, 3000), st.data())
def test_a_step_takes_the_smallest_size_that_holds_it(largest: int, interval: int, data: st.DataObject) -> None:
    sizes = graph_sizes(largest, interval)
    assert list(sizes) == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    rows = data.draw(st.integers(1, largest))
    size = size_for(sizes, rows)
    assert size == min(each for each in sizes if each >= rows)
    assert size - rows < max(interval, rows)
    with pytest.raises(InvariantError, match=f"{largest + 1} rows .*captured for up to {largest}"):
        size_for(sizes, largest + 1)


def twice_and_pairs(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """[n], and [2n] in blocks of two rows."""
    first, second = inputs
    return [2 * first, torch.stack((first + second[:, 0], first - second[:, 1]), 1).flatten()]


def some_rows(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(9, (count,), generator=generator), torch.randint(9, (count, 3), generator=generator)


def test_every_size_works_on_the_first_rows_of_one_set_of_buffers() -> None:
    seen: list[tuple[int, int]] = []

    def work(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        seen.append((inputs[0].shape[0], inputs[0].data_ptr()))
        return twice_and_pairs(inputs)

    graphs = RowGraphs(GraphingBackend(), (1, 2, 4, 8), some_rows(8), work, "rows")
    assert [size for size, _ in seen] == [8, 8, 4, 4, 2, 2, 1, 1], "the largest first, each once to warm up"
    assert len({place for _, place in seen}) == 1
    for seed, count in enumerate((4, 1, 8, 2)):
        rows = some_rows(count, seed)
        for found, expected in zip(graphs.run(rows), twice_and_pairs(rows), strict=True):
            assert torch.equal(found, expected)


def test_rows_that_are_no_size_are_padded_with_what_belongs_to_nobody() -> None:
    filled: list[list[list[int]]] = []

    def work(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        filled.append([tensor.reshape(len(tensor), -1)[:, 0].tolist() for tensor in inputs])
        return twice_and_pairs(inputs)

    graphs = RowGraphs(GraphingBackend(), (1, 2, 4, 8), some_rows(8), work, "rows")
    rows = some_rows(5, seed=1)
    for found, expected in zip(graphs.run_padded(rows, (7, -1)), twice_and_pairs(rows), strict=True):
        assert torch.equal(found, expected)
    assert filled[-1] == [[*rows[0].tolist(), 7, 7, 7], [*rows[1][:, 0].tolist(), -1, -1, -1]]
    with pytest.raises(InvariantError, match="5 rows are no size of a graph; 1, 2, 4, 8 are"):
        graphs.run(rows)
    with pytest.raises(InvariantError, match="9 rows were planned"):
        graphs.run_padded(some_rows(9), (0, 0))
    with pytest.raises(InvariantError, match=r"a buffer is torch.int64 \[4\]; it was given torch.int32 \[4\]"):
        graphs.run((some_rows(4)[0].int(), some_rows(4)[1]))


def test_work_that_cannot_be_captured_is_named_with_the_way_out() -> None:
    def fail(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    expected = r"4 rows of things cannot be captured \(operation not .*thalweg kernels --backend cpu.*graphs=False"
    with pytest.raises(BackendUnavailableError, match=expected):
        RowGraphs(GraphingBackend(), (1, 4), some_rows(4), fail, "things")
    with pytest.raises(InvariantError, match="backend cpu has no graphs"):
        RowGraphs(CpuBackend(), (1, 4), some_rows(4), twice_and_pairs, "things")


def test_the_tensors_of_a_step_make_the_step_again() -> None:
    def tensor(*shape: int) -> torch.Tensor:
        return torch.randint(99, shape)

    by_ratio = [{ratio: tensor(3) for ratio in (2, 1)} for _ in range(3)]
    batch = ForwardBatch(tensor(3), tensor(3), tensor(3, 2), valid_mask=tensor(3) > 5)
    metadata = DecodeMetadata(*(tensor(3) for _ in range(3)), tensor(3, 2), tensor(3), tensor(3, 4), *by_ratio)
    again = from_tensors(tensors_of(batch, metadata), (2, 1))
    assert again == (batch, metadata)
    with pytest.raises(InvariantError, match="valid_mask is None"):
        tensors_of(ForwardBatch(tensor(3), tensor(3), tensor(3, 2)), metadata)


def test_padding_is_rows_of_sequences_that_nobody_has() -> None:
    vocabulary = CompressedVocabulary(np.arange(50) + 100, 2, 3)
    inputs = InputBuilder(MetadataShape(8, 4, 9, (2,)), vocabulary)
    rows = inputs.dummy(3, draft_length=2, vocab_size=50)
    assert inputs.padded(rows, 3) is rows
    padded = inputs.padded(rows, 5)
    assert (padded.num_rows, padded.num_padding) == (5, 2)
    assert padded.query_lengths.tolist() == [1] * 5
    assert padded.base_lengths.tolist() == [0] * 5
    assert padded.previous_rows.tolist() == [-1] * 5
    assert padded.state_slots.tolist() == [0] * 5
    assert padded.block_offsets.tolist() == list(range(6))
    assert padded.block_ids.tolist() == [0] * 5
    assert padded.token_ids.shape == (5, 3)
    assert (padded.token_ids[3:, 0] == 0).all()
    assert padded.is_placeholder.tolist() == [False] * 3 + [True] * 2
    assert {getattr(padded, name).dtype for name in ("query_lengths", "block_offsets", "block_ids", "token_ids")} == {
        np.dtype(np.int32)
    }


@pytest.fixture
def graphing(monkeypatch: pytest.MonkeyPatch) -> list[GraphingBackend]:
    """Engines get a backend with graphs; those that were made."""
    made: list[GraphingBackend] = []

    def load(name: str) -> GraphingBackend:
        made.append(GraphingBackend())
        return made[-1]

    monkeypatch.setattr(assembly, "load_backend", load)
    return made


SETTINGS: dict[str, Any] = {"max_num_seqs": 3, "max_model_len": 64, "arithmetic": "float32", "graph_interval": 5}
PROMPTS = [[5, 6, 7, 8], [100, 200, 300] * 9, [9] * 40]
SAMPLING = [
    SamplingParams(temperature=0, max_tokens=5),
    SamplingParams(temperature=1, seed=3, max_tokens=5, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.7, top_p=0.9, seed=4, max_tokens=3),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"async_scheduling": True},
    {"async_scheduling": True, "variable_length": True, "check_lengths": True, "verification": "coupled"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["synchronous", "asynchronous", "shared-out"])
def test_graphs_with_padding_give_the_text_of_steps_without(
    drafting_checkpoint: str,
    graphing: list[GraphingBackend],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    num_rows: list[tuple[int, int]] = []
    forward = ModelDevice.forward

    def watched(device: ModelDevice, prepared: Any) -> Any:
        if prepared.selected_rows is None:
            num_rows.append((prepared.token_ids.shape[0], prepared.batch.token_ids.shape[0]))
        return forward(device, prepared)

    def run(graphs: bool) -> list[Any]:
        with LLM(drafting_checkpoint, **SETTINGS, graphs=graphs, **options) as llm:
            num_rows.clear()
            return [
                (output.outputs[0].token_ids, output.outputs[0].logprobs)
                for output in llm.generate(prompt_token_ids=PROMPTS, sampling_params=SAMPLING, use_tqdm=False)
            ]

    monkeypatch.setattr(ModelDevice, "forward", watched)
    plain = run(False)
    assert all(real == padded for real, padded in num_rows)
    assert run(True) == plain
    backend = graphing[-1]
    sizes, draft_sizes = graph_sizes(3 * 4, 5), graph_sizes(3)
    assert len(backend.graphs) == len(sizes) + len(draft_sizes)
    assert all(padded == size_for(sizes, real) for real, padded in num_rows)
    if "variable_length" not in options:  # lengths by measured times may fill every graph
        assert any(padded > real for real, padded in num_rows)
    assert sum(graph.num_replays for graph in backend.graphs[: len(sizes)]) >= len(num_rows)
    assert sum(graph.num_replays for graph in backend.graphs[len(sizes) :]) > 0


def test_a_cpu_captures_nothing(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("captured")

    monkeypatch.setattr(CpuBackend, "capture", refuse)
    with LLM(checkpoint, max_num_seqs=2, max_model_len=128, graphs=True) as llm:
        assert llm.engine.failure is None
