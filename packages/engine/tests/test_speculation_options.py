"""Options of drafting: what they settle to, and what is refused with which words."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_testing.scripted import ScriptedDrafter

from thalweg.dspark import ConfidenceRecorder, read_records
from thalweg.engine import LLM, EngineConfig, LLMEngine, SamplingParams, build_engine, instruments
from thalweg.engine.config import Origin
from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import CheckpointError, ConfigError, StepKind
from thalweg.model import DraftNetwork, Model, small_config, write_random_checkpoint

BLOCK = 3
LAYERS: dict[str, Any] = {
    "num_hidden_layers": 2,
    "compress_ratios": [2, 1],
    "kv_source_layer_ids": [0, 1],
    "index_source_layer_ids": [0, 1],
    "candidate_source_layer_id": 1,
    "engram_layer_ids": [1],
}
SETTINGS: dict[str, Any] = {"mode": "plain", "arithmetic": "float32", "max_num_seqs": 2, "max_model_len": 64}
Build = Callable[..., LLMEngine]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers and a drafter of one, trained for blocks of three."""
    path = tmp_path_factory.mktemp("drafting") / "checkpoint"
    write_random_checkpoint(path, small_config(**LAYERS, num_nextn_predict_layers=1, dspark_block_size=BLOCK), seed=5)
    return str(path)


@pytest.fixture(scope="module")
def plain_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plain") / "checkpoint"
    write_random_checkpoint(path, small_config(**LAYERS), seed=5)
    return str(path)


@pytest.fixture(scope="module")
def weights(checkpoint: str) -> dict[str, Any]:
    model = Model.load(checkpoint, mode="plain", arithmetic="float32")
    return {"model": model, "draft_network": DraftNetwork.load(checkpoint, model)}


@pytest.fixture
def build(checkpoint: str, weights: dict[str, Any]) -> Build:
    def build(**options: Any) -> LLMEngine:
        parts = {name: options.pop(name) for name in ("drafter", "step_times") if name in options}
        config = EngineConfig.build(environ={}, model=checkpoint, **(SETTINGS | options))
        return build_engine(config, **weights, **parts)

    return build


def serve(engine: LLMEngine, **params: Any) -> list[tuple[int, ...]]:
    """The tokens of two requests."""
    with engine:
        for name in ("0", "1"):
            sampling = {"temperature": 0.0, "seed": 3, "max_tokens": 10, "ignore_eos": True} | params
            engine.add_request(name, [5, 6, 7 + int(name)], SamplingParams(**sampling))
        tokens = {}
        while engine.has_unfinished():
            for output in engine.step():
                assert output.error is None
                tokens[output.request_id] = output.outputs[0].token_ids
    return [tokens[name] for name in sorted(tokens)]


def test_a_checkpoint_with_a_drafter_drafts_what_it_was_trained_for() -> None:
    config = EngineConfig.build(environ={}).for_checkpoint(max_position_embeddings=4096, draft_length=BLOCK)
    assert config.speculation.draft_length == BLOCK
    assert config.origin("draft_length") is Origin.CHECKPOINT
    wanted = EngineConfig.build(environ={}, draft_length=1).for_checkpoint(max_position_embeddings=4096, draft_length=3)
    assert wanted.speculation.draft_length == 1


@pytest.mark.parametrize("draft_length", [0, 1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"async_scheduling": True, "check_lengths": True}], ids=["sync", "async"])
def test_every_draft_length_gives_the_greedy_text(build: Build, draft_length: int, options: dict[str, Any]) -> None:
    engine = build(draft_length=draft_length, **options)
    lengths: list[int] = []
    engine.statistics.on_step(lambda record: lengths.append(record.plan.draft_token_ids.shape[1]))
    assert serve(engine) == serve(build(draft_length=0))
    assert max(lengths) == draft_length


@pytest.mark.parametrize(
    "options", [{"draft_length": 2}, {"variable_length": True, "step_times": [(1, 2.0), (8, 3.0)]}]
)
def test_coupled_text_is_that_without_drafts(build: Build, options: dict[str, Any]) -> None:
    expected = serve(build(draft_length=0, verification="coupled"), temperature=1.0)
    assert serve(build(verification="coupled", **options), temperature=1.0) == expected
    assert serve(build(verification="coupled", async_scheduling=True, **options), temperature=1.0) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_length": 4}, "draft_length is 4; the drafter proposes up to 3 tokens"),
        (
            {"confidence_temperatures": (1.0, 2.0)},
            r"confidence_temperatures is \(1\.0, 2\.0\); there are 2 temperatures; 1 or 3",
        ),
        ({"variable_length": True, "draft_length": 0}, "variable_length is True with draft_length 0"),
        ({"step_times": [(1, 2.0), (8, 3.0)]}, "step_times is given with variable_length False"),
        ({"confidence_records": "x", "variable_length": True}, "confidence_records is 'x' with variable_length"),
        ({"confidence_records": "x", "draft_length": 0}, "confidence_records is 'x' with draft_length 0"),
        (
            {"confidence_records": "x", "confidence_temperatures": (1.5,)},
            r"confidence_records is 'x' with confidence_temperatures \(1\.5,\); they must all be 1",
        ),
        ({"confidence_records": "/nowhere/x"}, "/nowhere/x: No such file or directory"),
        ({"confidence_records": 5}, "confidence_records is 5; it must be None or a path"),
        ({"curve_cache_dir": ""}, "curve_cache_dir is ''; it must be None or a path"),
        ({"curve_cache_dir": "a\0b"}, r"curve_cache_dir is 'a\\x00b'; it must be None or a path"),
        ({"curve_cache_ttl_s": 0}, "curve_cache_ttl_s is 0; it must be a number of seconds above 0"),
        ({"curve_cache_ttl_s": float("inf")}, "curve_cache_ttl_s is inf"),
        ({"draft_positions": "new"}, "draft_positions is 'new'; it must be 'per_step' or 'absolute'"),
        ({"verification": "blockwise"}, "verification is 'blockwise'; it must be 'rejection' or 'coupled'"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_accepted(build: Build, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**options)


@pytest.mark.parametrize(
    ("options", "is_biased"),
    [({"draft_positions": "absolute"}, True), ({}, False), ({"verification": "coupled"}, False)],
)
def test_the_one_biased_combination_is_warned_about(
    build: Build, caplog: pytest.LogCaptureFixture, options: dict[str, Any], is_biased: bool
) -> None:
    build(variable_length=True, step_times=[(1, 2.0), (8, 3.0)], **options).close()
    assert ("no longer follows the model's distribution" in caplog.text) is is_biased


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(8, 1.0), (4, 2.0)], r"step_times: points\[1\] has size 4 after 8; sizes must ascend strictly"),
        ([(0, 1.0), (8, 2.0)], r"step_times: points\[0\] has size 0"),
        ([(4, 1.0), (8, float("nan"))], r"step_times: points\[1\] takes nan ms"),
        ([(4, 1.0), (8, -2.0)], r"step_times: points\[1\] takes -2.0 ms"),
        ([(1, 1.0)], "step_times: the largest size is 1; max_num_seqs 2 needs one that holds a token of each"),
        ([(1.5, 1.0)], r"step_times: points\[0\] is \(1\.5, 1\.0\)"),
        ([5], r"step_times: points\[0\] is 5"),
        (np.array([[1.5, 1.0], [8.0, 2.0]]), r"step_times: points\[0\] is array"),
    ],
)
def test_a_bad_curve_is_refused(build: Build, points: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(variable_length=True, step_times=points)


@pytest.mark.parametrize("is_async", [False, True])
def test_no_step_has_more_rows_than_the_curve_knows(build: Build, is_async: bool) -> None:
    """Flat and short: whatever fits is worth it, and two sequences with three drafts each do not fit."""
    curve = [(2, 1.0), (5, 1.0)]
    engine = build(variable_length=True, step_times=curve, async_scheduling=is_async, check_lengths=True)
    rows: list[int] = []

    def note(record: StepRecord) -> None:
        if record.plan.kind is StepKind.DECODE and record.plan.sequence_ids.size:
            rows.append(int(record.plan.query_lengths.sum()))

    engine.statistics.on_step(note)
    assert serve(engine) == serve(build(draft_length=0))
    assert max(rows) == 5


def test_a_curve_cache_that_is_a_file_is_refused(build: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="it must be a directory, or not exist yet"):
        build(variable_length=True, curve_cache_dir=tmp_path / "file")


@pytest.mark.parametrize("options", [{"draft_length": 2}, {"variable_length": True}, {"confidence_records": "x"}])
def test_without_a_drafter_what_needs_one_is_refused(plain_checkpoint: str, options: dict[str, Any]) -> None:
    config = EngineConfig.build(environ={}, model=plain_checkpoint, **SETTINGS, **options)
    message = "the checkpoint has no drafter" if "draft_length" in options else "with draft_length 0; without drafts"
    with pytest.raises(ConfigError, match=message):
        build_engine(config)
    with LLM(plain_checkpoint, **SETTINGS, draft_length=0) as llm:
        assert llm.engine.scheduler is not None


def test_a_drafter_of_the_callers_own_has_its_own_length_and_confidences(build: Build) -> None:
    drafter: Any = ScriptedDrafter(None, 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="draft_length is 3; the given drafter proposes 2 tokens"):
        build(drafter=drafter, draft_length=3)
    with pytest.raises(ConfigError, match=r"confidence_temperatures is \(2\.0,\); they belong to the checkpoint's"):
        build(drafter=drafter, confidence_temperatures=(2.0,))


@pytest.mark.parametrize("layer", [-1, 99, True, "a"])
def test_a_layer_that_the_model_lacks_is_refused_at_once(build: Build, layer: Any) -> None:
    class Reader(ScriptedDrafter):
        @property
        def target_layer_ids(self) -> tuple[int, ...]:
            return (0, layer)

    drafter: Any = Reader(None, 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"target_layer_ids of the given drafter has .*; the model has layers 0 to "):
        build(drafter=drafter)


@pytest.fixture
def damaged_checkpoint(checkpoint: str, tmp_path: Path) -> str:
    """One whose drafter lacks a tensor."""
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if "markov_head.head" not in name}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(copy)


def test_a_damaged_drafter_is_refused(damaged_checkpoint: str) -> None:
    with pytest.raises(CheckpointError, match=r"markov_head\.head"):
        LLM(damaged_checkpoint, **SETTINGS)


def test_an_engine_that_cannot_be_loaded_leaves_no_file_open(
    damaged_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[ConfidenceRecorder] = []

    def open_recorder(path: str, draft_length: int) -> ConfidenceRecorder:
        recorders.append(ConfidenceRecorder(path, draft_length))
        return recorders[-1]

    monkeypatch.setattr(instruments, "ConfidenceRecorder", open_recorder)
    with pytest.raises(CheckpointError, match=r"markov_head\.head"):
        LLM(damaged_checkpoint, **SETTINGS, confidence_records=tmp_path / "records")
    assert [recorder.is_recording for recorder in recorders] == [False]


def test_temperatures_change_confidences_and_nothing_else(build: Build) -> None:
    def confidences(*temperatures: float) -> tuple[list[float], list[tuple[int, ...]]]:
        engine = build(confidence_temperatures=temperatures)
        seen: list[float] = []
        engine.statistics.on_step(lambda record: seen.extend(record.outcome.verified_confidences.ravel().tolist()))
        tokens = serve(engine)
        return [value for value in seen if value == value], tokens

    plain, texts = confidences()
    assert confidences(1.0) == (plain, texts)
    flat, same_texts = confidences(1e6, 1e6, 1e6)
    assert same_texts == texts
    assert max(abs(value - 0.5) for value in flat) < 1e-3 < max(abs(value - 0.5) for value in plain)


def test_records_are_what_calibration_reads(build: Build, tmp_path: Path) -> None:
    engine = build(confidence_records=tmp_path / "records")
    rows: list[tuple[list[float], int]] = []

    def note(record: Any) -> None:
        for known, accepted in zip(
            record.outcome.verified_confidences.tolist(), record.outcome.num_accepted.tolist(), strict=True
        ):
            if accepted and known[0] == known[0]:
                rows.append((known, accepted - 1))

    engine.statistics.on_step(note)
    serve(engine)
    records = read_records(tmp_path / "records")
    assert rows
    assert records.confidences.tolist() == [pytest.approx(row, rel=1e-7) for row, _ in rows]
    assert records.num_accepted.tolist() == [accepted for _, accepted in rows]


def test_records_of_another_draft_length_are_left_alone(build: Build, tmp_path: Path) -> None:
    serve(build(confidence_records=tmp_path / "records"))
    before = (tmp_path / "records").read_bytes()
    with pytest.raises(ConfigError, match="has records of draft_length 3, not 2"):
        build(confidence_records=tmp_path / "records", draft_length=2)
    assert (tmp_path / "records").read_bytes() == before


def test_a_measured_curve_is_kept_for_the_next_start(
    build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "thalweg.engine.step_time_profile")
    options = {"variable_length": True, "curve_cache_dir": tmp_path / "curves"}
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "notes.txt").write_text("mine")
    expected = serve(build(draft_length=0))
    for _ in range(2):
        assert serve(build(**options)) == expected
    assert caplog.text.count("measured 4 step times") == 1
    assert sorted(file.name.count(".") for file in (tmp_path / "curves").iterdir()) == [1, 2]
    serve(build(**options, draft_length=2))
    serve(build(**options, curve_cache_ttl_s=1e-9))
    assert caplog.text.count("step times in") == 3


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    assert serve(build(variable_length=True, curve_cache_dir="/proc/nothing")) == serve(build(draft_length=0))
    assert "the step-time curve is not kept" in caplog.text
