"""The backbone's training: its forward pass is the model's, its gradients are right, and a toy learns."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.train.backbone.attention import dense_attention, entry_mass, listed_attention
from tools.train.backbone.export import export_checkpoint
from tools.train.backbone.indexer import divergence, listed, top_lists
from tools.train.backbone.memory import PassShape
from tools.train.backbone.network import TrainingNetwork
from tools.train.backbone.phases import small_plan, toy_plan
from tools.train.backbone.sinkhorn import sinkhorn
from tools.train.backbone.training import Progress, Training, load_training_point
from tools.train.common.dimensions import toy_model
from tools.train.common.schedule import Clock
from tools.train.common.windows import TokenWindows
from torch import Tensor
from train_testing import DEQUANTISERS, documents

from thalweg.kernels.reference.hyper_connections import sinkhorn as reference_sinkhorn
from thalweg.model import Checkpoint, Model, ModelConfig, Trace, small_config, tensor_specs, write_random_checkpoint
from thalweg.model.engram_vocabulary import EngramVocabulary
from thalweg.model.tiny_tokenizer import write_tokenizer
from thalweg.tiny import checkpoint_path

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random") / "checkpoint"
    write_random_checkpoint(path, small_config(), seed=3)
    return path


def masters_of(path: Path) -> dict[str, Tensor]:
    """float32 values of every weight of a checkpoint."""
    with Checkpoint.open(path) as opened:
        return {
            spec.name: DEQUANTISERS[spec.format](*opened.quantized(spec.name.removesuffix(".weight")))
            if spec.format in DEQUANTISERS
            else opened.tensor(spec.name).float()
            for spec in tensor_specs(opened.config)
            if not spec.is_scale
        }


def network_of(path: Path) -> TrainingNetwork:
    config = ModelConfig.from_file(path)
    vocabulary = EngramVocabulary.from_checkpoint(path, config)
    return TrainingNetwork(config, vocabulary, masters_of(path), CPU, torch.float32)


def random_windows(batch: int, length: int, vocab_size: int = 512) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    windows = torch.randint(5, vocab_size, (batch, length + 1), generator=generator)
    windows[:, 0] = 0
    return windows


def model_losses(model: Model, windows: Tensor, trace: Trace | None = None) -> Tensor:
    logits = model.forward_sequences(list(windows[:, :-1]), trace=trace)
    return torch.nn.functional.cross_entropy(torch.cat(logits), windows[:, 1:].flatten(), reduction="none")


@pytest.mark.parametrize("dense_entries", [128, 0], ids=["masked", "listed"])
def test_a_training_pass_computes_what_the_model_computes(checkpoint: Path, dense_entries: int) -> None:
    windows = random_windows(2, 128)
    network, trace = network_of(checkpoint), Trace()
    selections: list[Tensor] = []
    select = network.ops.select_topk

    def watched(scores: Tensor, visible: Tensor, k: int) -> Tensor:
        selection = select(scores, visible, k)
        mask = selection if selection.dtype == torch.bool else listed(selection, scores.shape[-1])
        selections.append(mask.flatten(0, 1))
        return selection

    network.ops.select_topk = watched  # type: ignore[method-assign]
    losses = network.losses(windows, PassShape(2, 128, is_sparse=True, dense_entries=dense_entries))
    expected = model_losses(Model.load(checkpoint, "plain", "float32"), windows, trace)
    torch.testing.assert_close(losses.tokens.detach(), expected, atol=2e-5, rtol=0)
    assert len(selections) == 3
    for layer, mask in zip((2, 4, 6), selections, strict=True):
        wanted = listed(trace["topk", layer].long().unsqueeze(0), mask.shape[-1]).squeeze(0)
        assert torch.equal(mask, wanted), f"layer {layer}"


@pytest.mark.slow
def test_a_training_pass_of_the_shipped_checkpoint_is_the_model_s() -> None:
    path = checkpoint_path()
    windows = random_windows(1, 320, 4096)
    losses = network_of(path).losses(windows, PassShape(1, 320, is_sparse=True))
    with torch.no_grad():
        expected = model_losses(Model.load(path, "plain", "float32"), windows)
    # Where two scores are nearly equal, a rounding may select the other one.
    torch.testing.assert_close(losses.tokens.detach(), expected, atol=1e-3, rtol=0)
    assert float((losses.tokens.detach() - expected).abs().mean()) < 2e-5


def test_gradients_are_those_of_the_model(checkpoint: Path) -> None:
    windows = random_windows(2, 64)
    network = network_of(checkpoint)
    network.losses(windows, PassShape(2, 64, is_sparse=True)).tokens.mean().backward()
    model = Model.load(checkpoint, "plain", "exact", trainable=True)
    model_losses(model, windows).mean().backward()
    wanted = {name: leaf.grad for name, leaf in model.parameters.items() if leaf.grad is not None}
    for name in {name.removesuffix(".0") for name in wanted if name.endswith("wo_a.0")}:
        wanted[name] = torch.cat([wanted.pop(f"{name}.{block}") for block in range(2)])
    found = {name: leaf.grad for name, leaf in network.weights.parameters.items() if leaf.grad is not None}
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        scale = float(wanted[name].abs().max())
        # An Engram gate is the square root of a small number: its gradient loses half of the digits.
        error = 3e-3 if ".engram." in name else 1e-3
        torch.testing.assert_close(gradient.double(), wanted[name], atol=error * scale, rtol=0, msg=name)


def test_every_parameter_learns_but_the_biases_that_balance_sets(checkpoint: Path) -> None:
    network = network_of(checkpoint)
    losses = network.losses(random_windows(2, 64), PassShape(2, 64, study_blocks=2), torch.tensor([1, 2]))
    (losses.tokens.mean() + torch.stack(losses.indexers).sum()).backward()
    stepped = {piece.name for piece in network.weights.pieces if piece.gradient().abs().sum() > 0}
    everything = {spec.name for spec in tensor_specs(network.config) if not spec.is_scale}
    assert {name for name in everything - stepped if "gate.bias" not in name} == {
        "image_start",
        "image_end",
        "image_newline",
    } | {piece.name for piece in network.weights.pieces if "experts." in piece.name and piece.name not in stepped}
    assert sum("experts." in name for name in stepped) > 0.8 * sum("experts." in name for name in everything)


def test_the_indexer_loss_moves_indexers_and_nothing_else(checkpoint: Path) -> None:
    network = network_of(checkpoint)
    shape = PassShape(2, 64, is_sparse=True, study_blocks=2)
    losses = network.losses(random_windows(2, 64), shape, torch.tensor([1, 3]))
    assert len(losses.indexers) == 3
    assert all(loss > 0 for loss in losses.indexers)
    torch.stack(losses.indexers).sum().backward()
    moved = {name for name, leaf in network.weights.parameters.items() if leaf.grad is not None}
    assert moved == {name for name in network.weights.parameters if ".indexer." in name}


def test_divergence_is_zero_for_the_target_itself_and_right_otherwise() -> None:
    mass = torch.softmax(torch.randn(2, 3, 5), -1)
    mass[:, 0, 2:] = 0
    mass = mass / mass.sum(-1, keepdim=True)
    scores = torch.where(mass > 0, torch.log(mass), -torch.inf)
    assert float(divergence(mass, scores / 0.5, 0.5)) == pytest.approx(0, abs=1e-6)
    other = torch.randn(2, 3, 5)
    expected = torch.nn.functional.kl_div(torch.log_softmax(other, -1), mass, reduction="sum") / 6
    assert float(divergence(mass, other, 1.0)) == pytest.approx(float(expected), rel=1e-5)


def test_mass_is_the_share_of_attention_over_all_visible_entries() -> None:
    batch, length, heads, dim, window, ratio = 1, 32, 2, 4, 8, 2
    queries, keys = torch.randn(batch, length, heads, dim), torch.randn(batch, length, dim)
    entries, sink = torch.randn(batch, length // ratio, dim), torch.randn(heads)
    mass = entry_mass(queries, keys, entries, sink, torch.tensor([1, 3]), window, ratio)
    for index, position in enumerate([*range(8, 16), *range(24, 32)]):
        near = keys[0, position - window + 1 : position + 1]
        far = entries[0, : (position + 1) // ratio]
        logits = queries[0, position] @ torch.cat([far, near]).T * dim**-0.5
        shares = torch.softmax(torch.cat([logits, sink[:, None]], 1), 1)[:, : len(far)].sum(0)
        torch.testing.assert_close(mass[0, index, : len(far)], shares / shares.sum())
        assert float(mass[0, index, len(far) :].sum()) == 0


def test_listed_entries_give_what_masked_ones_give() -> None:
    queries, keys = torch.randn(2, 32, 2, 4), torch.randn(2, 32, 4)
    lists = top_lists(torch.randn(2, 32, 16).masked_fill(torch.rand(2, 32, 16) < 0.7, -torch.inf), 6)
    results = []
    for attend, selection in ((dense_attention, listed(lists, 16)), (listed_attention, lists)):
        leaves = [torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(2)]
        entries, sink = (leaf.requires_grad_() for leaf in leaves)
        output = attend(queries, keys, entries, selection, sink, 8)
        output.square().sum().backward()
        results.append((output.detach(), entries.grad, sink.grad))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second)


def test_the_gradient_that_undoes_divisions_is_that_of_autograd() -> None:
    logits, weights = 2 * torch.randn(50, 4, 4), torch.randn(50, 4, 4)
    leaf, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
    carry = sinkhorn(leaf, 20, 1e-6)
    (carry * weights).sum().backward()
    (reference_sinkhorn(wide, 20, 1e-6) * weights).sum().backward()
    torch.testing.assert_close(carry.detach(), reference_sinkhorn(logits, 20, 1e-6))
    assert wide.grad is not None
    torch.testing.assert_close(leaf.grad, wide.grad.float(), atol=2e-6, rtol=1e-4)


KERNEL_CHECK = """
import torch
from tools.train.backbone import sinkhorn_triton
from tools.train.backbone.sinkhorn import _Steps
logits, gradient = 2 * torch.randn(150, 4, 4), torch.randn(150, 4, 4)
carry, totals = _Steps.forward(logits, 5, 1e-6)
for mine, plain in zip(sinkhorn_triton.forward(logits, 5, 1e-6), (carry, totals)):
    torch.testing.assert_close(mine, plain)
mine = sinkhorn_triton.backward(carry, totals, gradient, 1e-6)
torch.testing.assert_close(mine, _Steps.backward(carry, totals, gradient, 1e-6), atol=2e-6, rtol=1e-4)
"""


def test_the_sinkhorn_kernels_do_the_steps_in_triton_s_interpreter() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", KERNEL_CHECK], check=True, cwd=ROOT, env=environment)


@pytest.mark.slow
def test_a_toy_learns_resumes_and_is_exported(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json", small_config())
    vocabulary = EngramVocabulary.from_tokenizer_file(tmp_path / "tokenizer.json")
    config = toy_model(vocabulary, 512)
    stream = documents(40, 300, 500)
    evaluation = TokenWindows(stream, 1, CPU).draw(4, 128, 0).numpy().astype(np.uint16)
    begun = Training(
        config, vocabulary, toy_plan(), stream, evaluation, Progress(0, 100.0), CPU, activations=torch.float32
    )
    before = begun.masters()
    kept = {name: value.clone() for name, value in before.items()}
    begun.warm()
    assert all(torch.equal(kept[name], value) for name, value in begun.masters().items())
    first, _ = begun.held_out_loss()
    names = []
    for number in range(20):
        begun.clock = Clock(100.0, number * 5.0)
        names.append(begun.advance().name)
    assert set(names) == {phase.name for phase in begun.plan.phases} - {"selected, long"}
    assert begun.held_out_loss()[0] < first - 0.4
    begun.save(tmp_path / "point")
    masters, progress = load_training_point(tmp_path / "point")
    assert (progress.steps, progress.elapsed_s) == (20, 95.0)

    resumed = Training(
        config, vocabulary, toy_plan(), stream, evaluation, progress, CPU, masters, activations=torch.float32
    )
    resumed.advance()
    assert resumed.optimiser.is_quantised
    assert resumed.optimiser.is_averaging
    last = resumed.held_out_loss()[0]
    with resumed.optimiser.averaged():
        loss, count = resumed.held_out_loss()
    assert last < first - 0.4
    assert abs(loss - last) < 0.1
    assert resumed.held_out_loss()[0] == last
    resumed.clock = Clock(100.0, 100.0)
    export_checkpoint(tmp_path / "out", config, resumed.masters(), tmp_path / "tokenizer.json")
    model = Model.load(tmp_path / "out", "plain", "float32")
    with torch.no_grad():
        exported = model_losses(model, torch.from_numpy(evaluation[:count].astype(np.int64)))
    assert float(exported.mean()) == pytest.approx(loss, abs=2e-5)


def test_plans_know_the_passes_that_are_left() -> None:
    plan = small_plan()
    assert [phase.name for phase in map(plan.at, (0.0, 0.05, 0.5, 0.79, 0.9, 0.96, 1.0))] == [
        "dense",
        "dense, indexers learn",
        "selected",
        "selected, long",
        "quantised, long",
        "quantised, long, averaged",
        "quantised, long, averaged",
    ]
    assert len(plan.shapes()) == 4
    assert {shape.length for shape in plan.shapes(0.9)} == {1024, 8192}
    assert all(shape.batch * shape.length == 65536 for shape in plan.shapes())
    assert replace(plan.shapes()[0], study_blocks=4) == plan.shapes()[1]
