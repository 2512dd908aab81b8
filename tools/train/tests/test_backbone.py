"""The backbone's training: its forward pass is the model's, its gradients are right, and a toy learns."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tools.train.backbone.attention import dense_attention, entry_mass, listed_attention
from tools.train.backbone.export import export_checkpoint
from tools.train.backbone.indexer import divergence, listed, top_lists
from tools.train.backbone.memory import PassShape
from tools.train.backbone.network import TrainingNetwork
from tools.train.backbone.phases import small_plan, toy_plan
from tools.train.backbone.sinkhorn import sinkhorn
from tools.train.backbone.training import Progress, Training, load_training_point
from tools.train.common.dimensions import toy_model
from tools.train.common.files import load_tokens
from tools.train.common.optimiser import Optimiser, Piece, Rates, orthogonalised
from tools.train.common.quantise import fake_quantise, quantise
from tools.train.common.resume import load_resume_point, mean_of_points, save_resume_point
from tools.train.common.schedule import Clock, RateSchedule
from tools.train.common.windows import TokenWindows
from torch import Tensor

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.kernels.reference import quant
from thalweg.kernels.reference.hyper_connections import sinkhorn as reference_sinkhorn
from thalweg.model import Checkpoint, Model, ModelConfig, Trace, small_config, tensor_specs, write_random_checkpoint
from thalweg.model.engram_vocabulary import EngramVocabulary
from thalweg.model.tiny_tokenizer import write_tokenizer
from thalweg.tiny import checkpoint_path

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]
DEQUANTISERS = {
    "fp8": quant.dequantize_fp8_weight,
    "fp4": quant.dequantize_mxfp4,
    "engram": quant.dequantize_mxfp8,
}


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


@pytest.mark.parametrize("name", ["fp8", "fp4", "engram"])
def test_fake_quantised_values_are_what_a_file_gives_back(name: str) -> None:
    values = torch.randn(3, 64, 96) * torch.logspace(-6, 3, 96)
    stored = torch.stack([DEQUANTISERS[name](*quantise(matrix, name)) for matrix in values])  # type: ignore[arg-type]
    assert torch.equal(fake_quantise(values, name), stored)  # type: ignore[arg-type]


def test_muon_directions_have_singular_values_near_one() -> None:
    for shape in ((3, 32, 64), (3, 64, 32)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
        assert 0.5 < float(values.min()) <= float(values.max()) < 1.3


def test_the_optimiser_steps_pieces_of_one_leaf_by_their_own_rules() -> None:
    leaf = torch.zeros(64, 32).requires_grad_()
    masters = {"a": torch.randn(32, 32), "b": torch.randn(32, 32)}
    pieces = [Piece("a", leaf, 0, 32, "fp8", "muon"), Piece("b", leaf, 32, 32, "bf16", "adam", rate=2.0)]
    optimiser = Optimiser(pieces, masters, Rates(muon=0.1, adam=0.01))
    assert torch.equal(leaf.detach(), torch.cat([masters["a"], masters["b"]]))
    (leaf[32:] * 3 + leaf[:32]).sum().backward()
    optimiser.rate.fill_(1.0)
    optimiser.step()
    torch.testing.assert_close(masters["b"] - leaf.detach()[32:], torch.full((32, 32), 0.02))
    assert torch.equal(optimiser.masters()["a"], leaf.detach()[:32])
    optimiser.is_quantised = True
    optimiser.write()
    assert torch.equal(leaf.detach()[:32], fake_quantise(optimiser.masters()["a"], "fp8"))


def test_averages_are_the_mean_over_steps_and_leave_the_masters_alone() -> None:
    leaf = torch.zeros(32, 32).requires_grad_()
    optimiser = Optimiser([Piece("a", leaf, 0, 32, "f32", "adam")], {"a": torch.randn(32, 32)})
    optimiser.rate.fill_(1.0)
    optimiser.start_averaging()
    seen = [leaf.detach().clone()]
    for _ in range(3):
        leaf.grad = torch.randn(32, 32)
        optimiser.step()
        seen.append(leaf.detach().clone())
    torch.testing.assert_close(optimiser.averages()["a"], torch.stack(seen).mean(0))
    with optimiser.averaged():
        assert torch.equal(leaf.detach(), optimiser.averages()["a"])
    assert torch.equal(leaf.detach(), seen[-1])


def test_tables_decay_at_their_own_rate() -> None:
    leaf, master = torch.zeros(32, 32).requires_grad_(), torch.randn(32, 32)
    pieces = [Piece("a", leaf, 0, 32, "f32", "adam", is_table=True)]
    optimiser = Optimiser(pieces, {"a": master}, Rates(adam=0.5, table_decay=0.2))
    optimiser.rate.fill_(1.0)
    optimiser.step()
    torch.testing.assert_close(leaf.detach(), 0.9 * master)


def test_a_rate_warms_up_stays_and_falls() -> None:
    schedule = RateSchedule(warmup_steps=10, restart_steps=4, constant_until=0.5, final=0.02)
    assert schedule.rate(0.0, 0, 0) == pytest.approx(0.1)
    assert schedule.rate(0.3, 500, 1) == pytest.approx(0.5)
    assert schedule.rate(0.5, 500, 100) == pytest.approx(1.0)
    assert schedule.rate(0.75, 500, 100) == pytest.approx(0.51)
    assert schedule.rate(1.0, 500, 100) == pytest.approx(0.02)


def test_the_clock_runs_only_while_there_is_training() -> None:
    clock = Clock(100.0, elapsed_s=25.0)
    assert clock.progress == 0.25
    clock.resume()
    with clock.paused():
        standing = clock.elapsed_s
        assert clock.elapsed_s == standing
    assert clock.elapsed_s >= standing >= 25.0
    with pytest.raises(ConfigError, match="planned_s is 0"):
        Clock(0)


def test_a_resume_point_replaces_the_last_one_and_has_limits(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no progress\.json"):
        load_resume_point(tmp_path)
    many = {f"t{index}": torch.full((3 << 20,), float(index), dtype=torch.bfloat16) for index in range(8)}
    save_resume_point(tmp_path, many, {"steps": 1})
    save_resume_point(tmp_path, {"t": torch.ones(3)}, {"steps": 2})
    tensors, progress = load_resume_point(tmp_path)
    assert progress == {"steps": 2}
    assert tensors.keys() == {"t"}
    with pytest.raises(ConfigError, match="at most 7 of 16777216"):
        save_resume_point(tmp_path, {f"t{index}": torch.ones(7 << 20) for index in range(3)}, {})


def test_resume_points_of_one_model_have_a_mean(tmp_path: Path) -> None:
    for name, value in (("first", 1.0), ("second", 2.0)):
        tensors = {"a": torch.full((3,), value), "b": torch.full((2, 2), value, dtype=torch.bfloat16)}
        save_resume_point(tmp_path / name, tensors, {})
    save_resume_point(tmp_path / "other", {"a": torch.ones(4)}, {})
    mean = mean_of_points([tmp_path / "first", tmp_path / "second"])
    assert torch.equal(mean["a"], torch.full((3,), 1.5))
    assert torch.equal(mean["b"], torch.full((2, 2), 1.5))
    with pytest.raises(ConfigError, match="other: names or shapes of weights differ"):
        mean_of_points([tmp_path / "first", tmp_path / "other"])


def test_windows_depend_on_seed_and_step_and_start_with_bos() -> None:
    stream = documents(40, 30, 500)
    windows = TokenWindows(stream, 7, CPU)
    first, again, other = (windows.draw(8, 64, step) for step in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first[:, 0] == 0).all()
    text = torch.from_numpy(stream.astype(np.int64)).unfold(0, 65, 1)
    found = [(text[:, 1:] == window[1:]).all(1).nonzero() for window in first]
    assert all(len(places) for places in found), "windows are parts of the stream"
    assert stream[int(found[0][0])] == 0, "an eighth of them begins with a document"
    with pytest.raises(ConfigError, match="the stream has"):
        windows.draw(1, len(stream), 0)


def test_tokens_are_read_packed_or_not(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither train\.npy nor train\.xz"):
        load_tokens(tmp_path, "train")
    tokens = np.arange(9, dtype=np.uint16)
    for name, part in (("train-2", tokens[4:]), ("train-1", tokens[:4]), ("train_other", tokens)):
        with lzma.open(tmp_path / f"{name}.xz", "wb") as file:
            np.save(file, part)
    assert np.array_equal(load_tokens(tmp_path, "train"), tokens)
    np.save(tmp_path / "train.npy", tokens[::-1])
    assert np.array_equal(load_tokens(tmp_path, "train"), tokens[::-1])


def documents(count: int, shortest: int, longest: int) -> NDArray[np.uint16]:
    """Documents that repeat a short phrase of their own: something to learn."""
    random = np.random.default_rng(0)
    pieces = []
    for _ in range(count):
        phrase = random.integers(5, 500, 7)
        pieces += [[0], np.resize(phrase, random.integers(shortest, longest)), [1]]
    return np.concatenate(pieces).astype(np.uint16)


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
