"""Step inputs against recorded vectors, and the rules that the vectors do not reach.

prepare_prompt.json, prepare_decode.json and prepare_sampler.json use their own names; the tests map ours to them.
Recorded keys that nothing here produces, and why:
  gate_force_random                 a benchmark option that is not offered
  yoco_*                            bounded replay: the cache package compares more cases of it
  kv_ca_index_offset_len            compressed streams without an indexer: every config that has one is refused
                                    (a recorded dense ratio is built like a sparse one; ks, ke, klen are then extra)
  cu_seqlens_k                      no op reads it
  cp_mirror_len                     context parallelism: not available in this version
  selected_prompt_indices in compact mode, and its empty lists: see yoco_*; ours are absent where nobody asks
  speculative.read_rows             the ops find them from the slots
  speculative.stop_token_ids        one id per sequence is enough: the second one is never used
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.plans import make_plan

from thalweg.cache import MetadataShape
from thalweg.engine.device import Prepared
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.prompt_rows import PromptRows
from thalweg.engine.sampler_inputs import build_sampler_inputs
from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.engine.token_rows import IMAGE_MARK, CompressedVocabulary, build_token_rows
from thalweg.engine.upload import Uploader
from thalweg.interfaces import StepKind, StepPlan
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model.metadata import DecodeMetadata, PrefillMetadata

GOLDEN = Path(__file__).parent / "golden"
EOS = 1


def load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((GOLDEN / name).read_text())
    return cases


def assert_equal(ours: object, recorded: dict[str, Any]) -> None:
    np.testing.assert_array_equal(
        np.asarray(ours), np.array(recorded["data"]).reshape(recorded.get("shape", len(recorded["data"])))
    )


def identity_vocabulary(case: dict[str, Any]) -> CompressedVocabulary:
    return CompressedVocabulary(
        np.arange(1000), case["input"]["engram_compressed_pad_token"], case["input"]["max_ngram_size"]
    )


def sampling_row(values: dict[str, Any]) -> SamplingRow:
    return SamplingRow(
        temperature=values.get("temperature", 1.0),
        top_p=values.get("top_p", 1.0),
        top_k=values.get("top_k", -1),
        seed=values.get("seq_seed", 0),
        min_tokens=values.get("first_n_token_no_eos", 0),
        forbidden_ids=np.array([EOS]),
        eos_token_id=-1 if values.get("ignore_eos", False) else EOS,
        num_logprobs=values.get("top_logprobs"),
        num_prompt_logprobs=values.get("top_logprobs", 0) if values.get("prompt_logprobs") else None,
    )


def build(case: dict[str, Any], kind: StepKind, draft_length: int = 0) -> Prepared:
    """The inputs of a step that the host knows everything about, completed on the device."""
    given = case["input"]
    vocabulary = identity_vocabulary(case)
    ratios = tuple(sorted(given["sparse_compress_ratios"] + given["dense_compress_ratios"]))
    shape = MetadataShape(given["block_size"], given["window_size"], given["swa_block_size"], ratios)
    plan = make_plan(kind, given["seqs"], vocabulary.max_ngram_size, draft_length)
    backend = CpuBackend()
    device = ModelInputs(
        backend, bind("cpu"), Uploader(backend), shape, given.get("max_num_blocks", 64), vocabulary, 1000
    )
    return device.prepare(InputBuilder(shape, vocabulary).build(plan), None)


def selected_rows(plan: StepPlan) -> torch.Tensor:
    """The query rows whose logits a step needs, of a model without compressed streams."""
    shape, vocabulary, backend = MetadataShape(128, 4, 16, ()), CompressedVocabulary.none(), CpuBackend()
    device = ModelInputs(backend, bind("cpu"), Uploader(backend), shape, 64, vocabulary, 1000)
    prepared = device.prepare(InputBuilder(shape, vocabulary).build(plan), None)
    return torch.arange(plan.num_batched_tokens) if prepared.selected_rows is None else prepared.selected_rows


def assert_per_ratio_equal(ours: dict[int, torch.Tensor], recorded: dict[str, dict[str, Any]]) -> None:
    for ratio, value in recorded.items():
        assert_equal(ours[int(ratio)], value)


@pytest.mark.parametrize("index", range(4))
def test_prefill_inputs_equal_the_recorded_ones(index: int) -> None:
    case = load("prepare_prompt.json")[index]
    recorded = case["output"]
    inputs = build(case, StepKind.PREFILL)
    batch, metadata = inputs.batch, inputs.metadata
    assert isinstance(metadata, PrefillMetadata)
    assert batch.valid_mask is None
    assert_equal(batch.token_ids, recorded["input_ids"])
    assert_equal(batch.positions, recorded["positions"])
    assert_equal(batch.ngram_ids, recorded["ngram_token_ids"])
    assert batch.token_ids.shape == (recorded["total_q"],)
    assert_equal(metadata.query_offsets, recorded["cu_seqlens_q"])
    assert_equal(metadata.state_slots, recorded["state_block_idx"])
    assert_equal(metadata.window_store_slots, recorded["slot_mapping_store_swa"])
    assert_equal(metadata.window_segments, recorded["load_segments_swa"])
    assert_equal(metadata.window_pivots, recorded["kv_swa_full_index_pivots"])
    assert metadata.state_slots.shape[0] * case["input"]["window_size"] == recorded["total_k_swa"]
    assert_per_ratio_equal(metadata.compressed_offsets, recorded["cu_compressed_seqlens_q"])
    assert_per_ratio_equal(metadata.compressed_positions, recorded["positions_c"])
    assert_per_ratio_equal(metadata.compressed_store_slots, recorded["slot_mapping_store_ca"])
    assert_per_ratio_equal(metadata.compressed_segments, recorded["load_segments_ca"])
    assert metadata.num_compressed_rows == {int(r): rows for r, rows in recorded["total_k_compressed"].items()}
    assert_per_ratio_equal(metadata.entry_begin, recorded["ks"])
    assert_per_ratio_equal(metadata.entry_end, recorded["ke"])


@pytest.mark.parametrize("index", range(2))
def test_decode_inputs_equal_the_recorded_ones(index: int) -> None:
    case = load("prepare_decode.json")[index]
    recorded = case["output"]
    inputs = build(case, StepKind.DECODE, draft_length=3)
    batch, metadata = inputs.batch, inputs.metadata
    assert isinstance(metadata, DecodeMetadata)
    valid = torch.ones_like(batch.token_ids, dtype=torch.bool) if batch.valid_mask is None else batch.valid_mask
    assert_equal(valid, recorded["valid_token_mask"])
    assert_equal(batch.token_ids, recorded["input_ids"])
    assert_equal(batch.positions, recorded["positions"])
    assert_equal(batch.ngram_ids, recorded["ngram_token_ids"])
    assert_equal(metadata.query_indices, recorded["query_indices"])
    assert_equal(metadata.state_slots, recorded["state_block_idx"])
    assert_equal(metadata.window_store_slots, recorded["slot_mapping_store_swa"])
    assert_equal(metadata.window_reads, recorded["kv_swa_index_offset_len"])
    assert_equal(metadata.context_lengths, recorded["context_lens"])
    assert list(metadata.block_tables.shape) == recorded["block_tables"]["shape"]
    for row, prefix in zip(metadata.block_tables.tolist(), recorded["block_tables"]["valid_prefix_rows"], strict=True):
        assert row[: len(prefix)] == prefix
    assert_per_ratio_equal(metadata.compressed_positions, recorded["positions_c"])
    assert_per_ratio_equal(metadata.compressed_store_slots, recorded["slot_mapping_store_ca"])
    assert_per_ratio_equal(metadata.visible_entries, recorded["klen"])


@pytest.mark.parametrize("index", range(4))
def test_sampler_inputs_equal_the_recorded_ones(index: int) -> None:
    case = load("prepare_sampler.json")[index]
    given, recorded = case["input"], case["output"]
    kind = StepKind.PREFILL if given["is_prompt"] else StepKind.DECODE
    plan = make_plan(kind, given["seqs"], 1, given["nextn"])
    inputs = build_sampler_inputs(
        plan,
        [
            SequenceToSample(sampling_row(sequence.get("sp", {})), prompt_token_ids=sequence["tokens"])
            for sequence in given["seqs"]
        ],
    )
    if given["yoco_mode"] != "compact":
        assert_equal(selected_rows(plan), recorded["selected_token_indices"])
    assert_equal(inputs.temperatures, recorded["temperatures"])
    assert_equal(inputs.parameters["top_p"], recorded["top_ps"])
    assert_equal(inputs.parameters["top_k"], recorded["top_ks"])
    assert inputs.parameters["seed"].tolist() == recorded["seq_seeds"]["data"]
    assert_equal(inputs.sample_positions, recorded["sample_positions"])
    if kind is StepKind.PREFILL:
        assert inputs.edits.forbidden_rows.tolist() == recorded["prefill"]["eos_suppression_rows"]
        assert inputs.edits.forbidden_ids.tolist() == recorded["prefill"]["eos_token_ids"]
        assert_prompt_equal(inputs.prompt, recorded)
    else:
        assert_equal(inputs.first_rows, recorded["decode"]["first_token_positions"])
        assert_equal(np.bincount(inputs.sequence_rows), recorded["decode"]["seqlens_q"])
    if "speculative" in recorded:
        assert_equal(inputs.draft_write_slots, recorded["speculative"]["write_slots"])
        stops = recorded["speculative"]["stop_token_ids"]
        assert inputs.eos_token_ids.tolist() == np.reshape(stops["data"], stops["shape"])[:, 0].tolist()


def assert_prompt_equal(prompt: PromptRows | None, recorded: dict[str, Any]) -> None:
    lengths = recorded["prefill"]["prompt_logprobs_lens"]
    assert recorded["prefill"]["enabled"] == [length > 0 for length in lengths]
    if prompt is None:
        assert not any(lengths)
        return
    assert_equal(prompt.rows, recorded["selected_prompt_indices"])
    assert_equal(prompt.token_ids, recorded["prefill"]["prompt_tokens"])
    assert np.diff(prompt.offsets).tolist() == lengths
    assert prompt.count == recorded["max_top_logprobs"]


def test_an_image_in_the_look_back_blocks_itself_and_everything_before() -> None:
    vocabulary = CompressedVocabulary(np.arange(20), 2, 4)
    sequence = {"tokens": [3, 4, 20, 5, 6, 7, 8], "q": 4, "k": 7, "blocks": [1], "state": 1}
    rows = build_token_rows(make_plan(StepKind.PREFILL, [sequence], 4), vocabulary)
    assert rows.ngram_ids.tolist() == [[5, 2, 2, 2], [6, 5, 2, 2], [7, 6, 5, 2], [8, 7, 6, 5]]
    assert IMAGE_MARK not in rows.ngram_ids


def test_a_model_without_ngram_tables_gets_a_column_that_nobody_reads() -> None:
    sequence = {"tokens": [3, 4], "q": 2, "k": 2, "blocks": [1], "state": 1}
    rows = build_token_rows(make_plan(StepKind.PREFILL, [sequence], 1), CompressedVocabulary.none())
    assert rows.ngram_ids.shape == (2, 1)
    assert rows.token_ids.tolist() == [3, 4]


def test_tokens_that_end_an_output_are_forbidden_until_it_is_long_enough() -> None:
    row = SamplingRow(temperature=1.0, min_tokens=3, forbidden_ids=np.array([1, 9]))
    sequence = {"tokens": [3, 4, 5, 6], "prompt": 2, "q": 3, "k": 6, "blocks": [1], "state": 1, "drafts": [7, 8]}
    inputs = build_sampler_inputs(make_plan(StepKind.DECODE, [sequence], 1, 2), [SequenceToSample(row)])
    assert (inputs.edits.forbidden_rows.tolist(), inputs.edits.forbidden_ids.tolist()) == ([0, 0], [1, 9])
    chunk = {"tokens": [3, 4, 5, 6], "q": 2, "k": 2, "blocks": [1], "state": 1}
    inputs = build_sampler_inputs(make_plan(StepKind.PREFILL, [chunk], 1), [SequenceToSample(row)])
    assert not inputs.edits.forbidden_rows.size


def test_later_rows_of_a_step_use_far_away_positions() -> None:
    sequence = {"tokens": [3, 4], "q": 3, "k": 4, "blocks": [1], "state": 1, "drafts": [7, 8]}
    row = SamplingRow(temperature=1.0, forbidden_ids=np.array([1]))
    inputs = build_sampler_inputs(make_plan(StepKind.DECODE, [sequence], 1, 2), [SequenceToSample(row)])
    assert inputs.row_positions().tolist() == [2, 2 + 10000019, 2 + 2 * 10000019]
