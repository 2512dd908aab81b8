"""The drafter's training: its blocks are those that the package drafts, and every stage runs on a toy."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tools.train.backbone.initial import initial_masters
from tools.train.common.dimensions import small_model
from tools.train.drafter import study
from tools.train.drafter.blocks import block_rows
from tools.train.drafter.chain import judge_shelf, walk
from tools.train.drafter.export import export
from tools.train.drafter.library import Library, Share, Shelf
from tools.train.drafter.material import write_for_measuring
from tools.train.drafter.measure import calibration_errors, least_repetitive
from tools.train.drafter.settings import draft_specs, with_drafter
from tools.train.drafter.target import Target
from tools.train.drafter.train import Amounts, Plan, Run, trained
from tools.train.drafter.trainer import Trainer
from tools.train.evaluate.models import Subject

import thalweg.tiny
from thalweg.dspark import read_temperatures
from thalweg.interfaces import ConfigError, DraftRows
from thalweg.kernels import RecordFormat
from thalweg.model import (
    CachedDrafter,
    Checkpoint,
    DraftNetwork,
    Model,
    ModelConfig,
    small_config,
    write_random_checkpoint,
)
from thalweg.model.engram_vocabulary import EngramVocabulary

CPU = torch.device("cpu")
LENGTH = 40
TOY = {
    "vocab_size": 288,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "compress_ratios": [0, 2, 2, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3],
    "candidate_source_layer_id": 3,
    "engram_layer_ids": [1],
    "hc_sinkhorn_iters": 3,
}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "backbone"
    write_random_checkpoint(path, small_config(**TOY))
    return path


@pytest.fixture(scope="module")
def target(backbone: Path) -> Target:
    subject = Subject.open(backbone, CPU)
    return Target(subject, with_drafter(subject.config).dspark_target_layer_ids)


@pytest.fixture(scope="module")
def texts() -> torch.Tensor:
    return torch.randint(5, 288, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def first_masters(config: ModelConfig) -> dict[str, torch.Tensor]:
    return initial_masters(draft_specs(config).values(), config.hc_mult, 0)


def noisy_masters(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Masters in which nothing is zero any more."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: value + 0.05 * torch.randn(value.shape, generator=generator)
        for name, value in first_masters(config).items()
    }


def library(target: Target, texts: torch.Tensor) -> Library:
    count = len(texts)
    shelf = Shelf.read(target, texts, torch.ones(count, dtype=torch.int64), torch.arange(count) % 2 == 0)
    return Library([Share(shelf, 2, 8, 5)])


class Rings:
    """Window pools of a plain-mode cache with one sequence per slot from 1 on."""

    def __init__(self, config: ModelConfig, num_sequences: int) -> None:
        self.layout = SimpleNamespace(ring_length=config.sliding_window + config.dspark_block_size + 1)
        record = RecordFormat.FLOAT64.record_bytes(config.head_dim)
        layers = config.num_hidden_layers + config.num_draft_layers
        self._pools = torch.zeros(layers, num_sequences + 1, self.layout.ring_length, 1, record, dtype=torch.uint8)

    def window(self, layer: int) -> torch.Tensor:
        return self._pools[layer]


def test_training_blocks_are_those_that_the_package_drafts_over_a_cache(
    backbone: Path, target: Target, texts: torch.Tensor, tmp_path: Path
) -> None:
    config = with_drafter(target.model.config)
    masters = noisy_masters(config)
    export(backbone, config, masters, tmp_path / "exported")
    network = DraftNetwork.load(tmp_path / "exported", Model.load(tmp_path / "exported", "plain", "float32"))
    trainer = Trainer(config, masters, target.model, library(target, texts))
    trainer.optimiser.is_quantised = True
    trainer.optimiser.write()  # now working tensors are what the export stores
    read, size = target.read(texts), config.dspark_block_size
    anchors = torch.tensor([text * LENGTH + place for text in range(3) for place in (1, 7, 16, 17, 33)])

    views = Rings(config, len(anchors))
    ring = views.layout.ring_length
    for slot, anchor in enumerate(anchors.tolist(), 1):
        seen = torch.arange(anchor - anchor % LENGTH, anchor)[-ring:]
        positions = read.positions[seen]
        network.write_main_keys(read.features[seen], positions, views, (slot * ring + positions % ring).int())
    shown: list[torch.Tensor] = []

    def sample(place: int, logits: torch.Tensor) -> torch.Tensor:
        shown.append(logits.clone())
        return read.token_ids[anchors + place + 1].int()

    slots = torch.arange(1, len(anchors) + 1, dtype=torch.int32)
    drafted = DraftRows(np.arange(len(anchors)), read.token_ids[anchors].int(), read.positions[anchors].int(), slots)
    _, confidences = CachedDrafter(network, views, size, (1.0,) * size).propose(drafted, SimpleNamespace(sample=sample))

    rows = block_rows(trainer.network, read, anchors).flatten(0, 1)
    before = trainer.network.markov_rows(read.token_ids[read.following(anchors, size)].flatten())
    logits = trainer.network.biased(trainer.network.base_logits(rows), before)
    expected = torch.stack(shown, 1).flatten(0, 1)
    assert expected.std() > 0.1
    assert (logits - expected).abs().max() < 1e-4
    sure = trainer.network.confidences(rows, before, 1.0)
    assert (sure.view(-1, size) - confidences).abs().max() < 1e-5


def test_the_drafter_of_the_small_model_is_that_of_its_dimensions() -> None:
    vocabulary = EngramVocabulary.from_tokenizer_file(thalweg.tiny.checkpoint_path() / "tokenizer.json")
    assert with_drafter(small_model(vocabulary, drafter=False)) == small_model(vocabulary, drafter=True)


def test_every_draft_tensor_but_the_selection_biases_learns(target: Target, texts: torch.Tensor) -> None:
    config = with_drafter(target.model.config)
    trainer = Trainer(config, noisy_masters(config), target.model, library(target, texts))
    before = {name: master.clone() for name, master in trainer.masters().items()}
    trainer.optimiser.rate.fill_(1.0)
    trainer.step()
    after = trainer.masters()
    assert after.keys() == draft_specs(config).keys()
    same = {name for name, master in after.items() if torch.equal(master, before[name])}
    assert same == {f"mtp.{block}.ffn.gate.{bias}" for block in range(3) for bias in ("bias", "bias_vl")}
    leaves = trainer.network.parameters
    idle = {name for name, leaf in leaves.items() if leaf.grad is None or not leaf.grad.any()}
    assert all(".experts." in name for name in idle)  # so few rows do not reach every expert


def test_masters_are_all_that_was_learnt(target: Target, texts: torch.Tensor) -> None:
    """Keys of the target's rows and of the block's own come from one checkpoint tensor in two working tensors."""
    config, drawn = with_drafter(target.model.config), library(target, texts)
    trainer = Trainer(config, noisy_masters(config), target.model, drawn)
    trainer.optimiser.rate.fill_(1.0)
    for _ in range(3):
        trainer.step()
    another = Trainer(config, trainer.masters(), target.model, drawn)
    assert another._loss().total == trainer._loss().total
    assert all(torch.equal(leaf, trainer.network.parameters[name]) for name, leaf in another.network.parameters.items())


def test_a_step_reads_nothing_back_and_draws_nothing(target: Target, texts: torch.Tensor) -> None:
    config = with_drafter(target.model.config)
    trainer = Trainer(config, first_masters(config), target.model, library(target, texts))
    with torch.autograd.profiler.profile() as profile:
        trainer.advance()
    called = {event.name for event in profile.function_events}
    assert "aten::mm" in called
    assert not called & {"aten::item", "aten::nonzero", "aten::masked_select", "aten::unique", "aten::bincount"}
    assert not [name for name in called if "rand" in name or "uniform" in name or "multinomial" in name]


def test_no_graph_of_gradients_outlives_a_step(target: Target, texts: torch.Tensor) -> None:
    def tensors() -> list[torch.Tensor]:
        return [value for value in gc.get_objects() if type(value) is torch.Tensor and value.grad_fn is not None]

    others = tensors()
    config = with_drafter(target.model.config)
    trainer = Trainer(config, first_masters(config), target.model, library(target, texts))
    trainer.step()
    gc.collect()
    assert {id(value) for value in tensors()} <= {id(value) for value in others}


def test_selection_biases_follow_the_load(target: Target, texts: torch.Tensor) -> None:
    config = with_drafter(target.model.config)
    trainer = Trainer(config, first_masters(config), target.model, library(target, texts))
    trainer.balance_rate.fill_(0.5)
    trainer.step()
    bias = trainer.masters()["mtp.0.ffn.gate.bias"]
    assert bias.min() < 0 < bias.max()
    assert set(bias.abs().tolist()) <= {0.0, 0.5}
    assert torch.equal(bias, trainer.masters()["mtp.0.ffn.gate.bias_vl"])


def test_the_target_is_the_packages_own_model(backbone: Path, target: Target, texts: torch.Tensor) -> None:
    expected = torch.cat(Model.load(backbone, "plain", "float32").forward_sequences(list(texts)))
    assert (target.model.logits(target.read(texts).hidden) - expected).abs().max() < 1e-3


def test_texts_written_in_lockstep_are_the_models_own(target: Target, texts: torch.Tensor) -> None:
    shelf = write_for_measuring(target, texts[:, :11], 20, greedy=True)
    assert torch.equal(shelf.token_ids[:, :11], texts[:, :11])
    logits = target.model.logits(target.read(shelf.token_ids).hidden).view(3, 31, -1)
    assert torch.equal(logits.argmax(-1)[:, 10:-1], shelf.token_ids[:, 11:])
    sampled = write_for_measuring(target, texts[:, :11], 20, greedy=False)
    assert not torch.equal(sampled.token_ids, shelf.token_ids)


def test_a_chain_goes_on_behind_what_a_step_emitted() -> None:
    steps, rates = walk(torch.tensor([[2, 0, 0, 1, 0, 5], [0, 0, 0, 0, 0, 0]]))
    assert [places.tolist() for places in steps] == [[0, 3, 5], [0, 1, 2, 3, 4, 5]]
    assert rates.tolist() == [11 / 3, 1.0]


def test_drafts_at_temperature_1_are_accepted_as_often_as_the_distributions_overlap(
    backbone: Path, target: Target, tmp_path: Path
) -> None:
    config = with_drafter(target.model.config)
    export(backbone, config, noisy_masters(config), tmp_path / "exported")
    target = Target(Subject.open(tmp_path / "exported", CPU), config.dspark_target_layer_ids)
    network = study.load_network(tmp_path / "exported", target.model, CPU)
    prompts = torch.randint(5, 288, (48, 4), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    shelf = write_for_measuring(target, prompts, 25, greedy=False)
    judged = judge_shelf(network, target.model, shelf, torch.Generator().manual_seed(0), greedy=False)
    assert judged.num_accepted.shape == (48 * 20,)
    expected, found = judged.overlap[:, 0], (judged.num_accepted > 0).float()
    assert expected.std() > 0.01
    deviation = float((expected * (1 - expected)).mean() / len(found)) ** 0.5
    assert abs(float(found.mean() - expected.mean())) < 3 * deviation


def test_calibration_errors_are_distances_within_bins() -> None:
    predicted = torch.tensor([[0.1], [0.12], [0.9]])
    assert calibration_errors(predicted, torch.tensor([[0.0], [0.22], [0.6]])) == pytest.approx([0.1], abs=1e-6)


def test_the_least_repetitive_third_has_the_most_distinct_runs_of_four() -> None:
    texts = torch.stack([torch.arange(20), torch.arange(20) % 3, torch.zeros(20, dtype=torch.int64)])
    assert least_repetitive(texts).tolist() == [True, False, False]


AMOUNTS = Amounts(corpus_texts=6, corpus_length=64, own_texts=4, own_length=20, corpus_share=(3, 16), own_share=(2, 8))


def progress(plan: Plan) -> dict[str, float]:
    found: dict[str, float] = json.loads((plan.out / "progress.json").read_text())
    return found


def test_stages_follow_each_other_and_training_goes_on_where_it_stopped(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    stream = (5 + np.cumsum(random.integers(0, 3, 3000)) % 40).astype(np.uint16)
    np.save(tmp_path / "train.npy", stream)
    np.save(tmp_path / "held_out.npy", stream)
    np.save(tmp_path / "evaluation.npy", stream[:260].reshape(4, 65))
    plan = Plan(backbone, tmp_path, tmp_path / "point", 0.02, 0.0, 0, CPU, AMOUNTS)
    Run(plan).train()
    assert progress(plan)["steps"] == 0  # the invocation had no time
    plan = replace(plan, max_minutes=10.0)
    Run(plan).train()
    first = progress(plan)
    again = Run(replace(plan, minutes=0.04))
    assert torch.equal(again.trainer.masters()["mtp.0.main_proj.weight"], trained(plan.out)["mtp.0.main_proj.weight"])
    again.train()
    second = progress(plan)
    assert second["steps"] > first["steps"] > 0
    assert second["elapsed_s"] > 2.4 > first["elapsed_s"] > 1.2
    assert second["invocations"] == 3

    config = with_drafter(ModelConfig.from_file(backbone))
    total = export(backbone, config, trained(plan.out), tmp_path / "exported")
    with Checkpoint.open(tmp_path / "exported", strict=True) as checkpoint:
        assert total == sum(checkpoint.header(name).num_bytes for name in checkpoint)
    with pytest.raises(ConfigError, match="has a drafter already"):
        export(tmp_path / "exported", config, trained(plan.out), tmp_path / "twice")
    with pytest.raises(ConfigError, match="has files; a new folder is needed"):
        export(backbone, config, trained(plan.out), tmp_path / "exported")

    monkeypatch.setattr(study, "CONTINUATION", 12)
    monkeypatch.setattr(study, "PROMPT_LENGTH", 16)
    small = study.Amounts(prompts=3, prompts_to_fit=3, windows=2, stride=8)
    measured = study.Study(tmp_path / "exported", tmp_path, CPU, 0, small)
    temperatures = measured.fit(tmp_path / "fit")
    for name, values in temperatures.items():
        assert read_temperatures(tmp_path / "fit" / name, 5) == tuple(values)
    report = measured.measure(temperatures)
    assert 1 <= report["greedy"]["chain"]["tokens_per_step"] <= 6
    assert len(report["held_out_text"]["calibration_error"]) == 5


def test_a_backbone_too_large_for_the_drafter_beside_it_is_refused(backbone: Path, tmp_path: Path) -> None:
    config = replace(with_drafter(ModelConfig.from_file(backbone)), dspark_markov_rank=32768)
    with pytest.raises(ConfigError, match="at most 24000000 are allowed"):
        export(backbone, config, {}, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
